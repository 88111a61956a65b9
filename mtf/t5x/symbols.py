"""Maps mtf's settings to the arguments of T5X's functions and classes.

The functions in `JOBS` read the settings of a job and return the config of the T5X function that
runs it. Arguments that they omit keep T5X's defaults. Functions and classes are given as dotted
names, so importing this module does not import T5X.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl

from mtf.t5x import adapters
from mtf.t5x.unsupported import get
from mtf.training.settings import AdafactorConfig, ScheduleConfig, field_names

_NETWORK = (
    "vocab_size dtype emb_dim num_heads num_encoder_layers num_decoder_layers head_dim mlp_dim "
    "mlp_activations dropout_rate logits_via_embedding"
)


class Settings:
    """Reads the settings of a job and makes configs of T5X's functions and classes.

    Args:
      config: the job's config, in which all defaults are set.
      model: the config of the model, for jobs that read the model from a checkpoint.
      imports: whether to import T5X; otherwise, `make`, `partial` and `adapted` return None.

    Attributes:
      used: the paths of all settings that have been read.
    """

    def __init__(self, config: fdl.Config, model: Any = None, *, imports: bool = True):
        self.used: set[str] = set()
        self._config, self._model, self._imports = config, model, imports

    def __call__(self, path: str) -> Any:
        """Returns the value at a path, or None if a component on the path is None."""
        self.used.add(path)
        first, _, rest = path.partition(".")
        if first == "model" and not hasattr(self._config, "model"):
            return get(self._model, rest)
        return get(self._config, path)

    def below(self, prefix: str, names: str) -> dict[str, Any]:
        """Returns a dict from each word in `names` to the setting of that name below `prefix`."""
        return {name: self(f"{prefix}.{name}" if prefix else name) for name in names.split()}

    def adapted(self, function: Callable[..., Any], *paths: str) -> Any:
        """Returns the result of calling `function` with the values at `paths`."""
        values = [self(path) for path in paths]
        return function(*values) if self._imports else None

    def make(self, name: str, /, **arguments: Any) -> Any:
        """Returns a config of the function or class to which a dotted name refers."""
        return fdl.Config(adapters.symbol(name), **arguments) if self._imports else None

    def partial(self, name: str, /, **arguments: Any) -> Any:
        """Returns a partial of a function, or the function itself if there are no arguments."""
        if not self._imports:
            return None
        function = adapters.symbol(name)
        return fdl.Partial(function, **arguments) if arguments else function


def _model(job: Settings, data: str, decoding: str, **arguments: Any) -> Any:
    vocabulary = job.make(
        "mtf.data.seqio_tasks.tasks.seqio_vocabulary", vocabulary=job(f"{data}vocabulary")
    )
    network = job.below("model.network", _NETWORK)
    return job.make(
        "t5x.models.EncoderDecoderModel",
        module=job.make(
            "t5x.examples.t5.network.Transformer",
            config=job.make("t5x.examples.t5.network.T5Config", **network),
        ),
        input_vocabulary=vocabulary,
        output_vocabulary=vocabulary,
        decode_fn=job.adapted(adapters.decode_fn, decoding),
        default_decoder_params=job.adapted(adapters.decoder_params, decoding),
        **arguments,
    )


def _dataset(job: Settings, mixture: Any, split: str, **arguments: Any) -> Any:
    return job.make(
        "t5x.utils.DatasetConfig", mixture_or_task_name=mixture, split=split, **arguments
    )


def _partitioner(job: Settings) -> Any:
    submesh = job("partitioner.model_parallel_submesh")
    number = job("partitioner.num_partitions")
    return job.make(
        "mtf.t5x.partitioning.PjitPartitioner",
        # T5X requires a value for one of these two arguments.
        num_partitions=1 if number is None and submesh is None else number,
        model_parallel_submesh=submesh,
        logical_axis_rules=job.adapted(
            adapters.logical_axis_rules, "partitioner.logical_axis_rules"
        ),
    )


def _optimizer(job: Settings) -> Any:
    return job.make(
        "t5x.adafactor.Adafactor",
        **job.below("optimizer", field_names(AdafactorConfig, "learning_rate")),
        logical_factor_rules=job.make("t5x.adafactor.standard_logical_factor_rules"),
    )


def _trainer(job: Settings) -> Any:
    number = job("trainer.num_microbatches")
    return job.partial(
        adapters.trainer(job("model.loss_normalizing_factor"), number),
        learning_rate_fn=job.make(
            "t5x.utils.create_learning_rate_scheduler",
            **job.below("optimizer.learning_rate", field_names(ScheduleConfig)),
        ),
        num_microbatches=number if number > 1 else None,  # with None, T5X does not loop
    )


def _checkpoint(job: Settings) -> Any:
    save = job.make(
        "t5x.utils.SaveCheckpointConfig",
        **job.below("checkpoint.save", "dtype keep"),
        period=job("checkpoint.save.period") or job("train_steps"),
        checkpoint_steps=[*job("checkpoint.save.checkpoint_steps")] or None,
        save_dataset=True,
    )
    restore = None
    if job("checkpoint.restore") is not None:
        rules = ("checkpoint.restore.assignment_map", "checkpoint.restore.fallback_to_scratch")
        restore = job.make(
            "t5x.utils.RestoreCheckpointConfig",
            path=job.adapted(
                adapters.restore_path, "checkpoint.restore.path", "checkpoint.restore.mode"
            ),
            mode=job("checkpoint.restore.mode"),
            assignment_map=job.adapted(adapters.assignment_map, *rules),
            fallback_to_scratch=job.adapted(adapters.fallback_to_scratch, *rules),
            dtype="float32",
        )
    return job.make("t5x.utils.CheckpointConfig", save=save, restore=restore)


def _train(job: Settings) -> Any:
    data, evaluator = job("data"), job("evaluator")
    name, eval_split = adapters.data_name(data), adapters.eval_split(data)
    shared = {"batch_size": job("batch_size"), **job.below("data", "task_feature_lengths seed")}
    trained = {**shared, "use_cached": getattr(data, "use_cached", False), "pack": job("data.pack")}
    eval_period = job("trainer.eval_period")
    train_eval = infer_eval = decoded = None
    if eval_period is not None:
        train_eval = _dataset(job, name, eval_split, shuffle=False, **trained)
    if evaluator is not None:
        held_out = job.make(
            "mtf.t5x.evaluator.register_held_out",
            **{"name": name, "split": eval_split, "data": data, "evaluator": evaluator},
        )
        unpacked = {"shuffle": False, "use_cached": False, "pack": False}
        infer_eval = _dataset(job, held_out, eval_split, **shared, **unpacked)
        decoded = _evaluator(job)
    return job.make(
        "t5x.train.train",
        model=_model(
            *(job, "data.", "evaluator.decoding"),
            **job.below("model", "label_smoothing z_loss"),
            optimizer_def=_optimizer(job),
            loss_normalizing_factor=job.adapted(
                adapters.loss_normalizing_factor,
                *("model.loss_normalizing_factor", "trainer.num_microbatches"),
                *("batch_size", "data.task_feature_lengths"),
            ),
        ),
        train_dataset_cfg=_dataset(
            job, name, getattr(data, "split", "train"), shuffle=job("data.shuffle"), **trained
        ),
        train_eval_dataset_cfg=train_eval,
        infer_eval_dataset_cfg=infer_eval,
        checkpoint_cfg=_checkpoint(job),
        partitioner=_partitioner(job),
        trainer_cls=_trainer(job),
        **job.below("", "model_dir random_seed"),
        total_steps=job("train_steps"),
        **job.below("trainer", "eval_steps stats_period run_eval_before_training"),
        # T5X uses the same period for both evaluations.
        eval_period=eval_period or (0 if evaluator is None else evaluator.period),
        summarize_config_fn=job.partial("mtf.t5x.datasets.summarize_nothing"),
        inference_evaluator_cls=decoded,
        get_dataset_fn=job.partial("mtf.t5x.datasets.get_dataset", data=data),
        train_eval_get_dataset_fn=job.partial(
            "mtf.t5x.datasets.get_training_eval_datasets", data=data
        ),
        verify_matching_vocabs_fn=None,  # SeqIO does not know the vocabulary of mtf's data.
    )


def _evaluator(job: Settings) -> Any:
    # The loggers are those of T5X's gin files, except the one that prints.
    loggers = [job.partial("seqio.TensorBoardLogger"), job.partial("seqio.JSONLogger")]
    return job.partial("seqio.Evaluator", logger_cls=loggers)


def _of_checkpoint(job: Settings, mixture: Any, split: str, data: str) -> dict[str, Any]:
    """Returns the arguments that T5X's functions for evaluation and inference share.

    `data` is the prefix of the paths of the data settings: either "data." or an empty string.
    """
    return {
        "model": _model(job, data, "decoding", optimizer_def=None),
        "dataset_cfg": _dataset(
            *(job, mixture, split),
            task_feature_lengths=job(f"{data}task_feature_lengths"),
            **{"batch_size": job("batch_size"), "shuffle": False, "seed": 0},
        ),
        "restore_checkpoint_cfg": job.make(
            "t5x.utils.RestoreCheckpointConfig",
            **{"path": job("checkpoint"), "mode": "specific", "dtype": job("dtype")},
        ),
        "partitioner": _partitioner(job),
        "output_dir": job("output_dir"),
        "summarize_config_fn": job.partial("mtf.t5x.datasets.summarize_nothing"),
    }


def _evaluate(job: Settings) -> Any:
    data = job("data")
    name = adapters.data_name(data)
    tasks = job.make("mtf.t5x.evaluator.register_tasks", name=name, data=data)
    return job.make(
        "t5x.eval.evaluate",
        **_of_checkpoint(job, tasks, adapters.eval_split(data), "data."),
        inference_evaluator_cls=_evaluator(job),
    )


def _infer(job: Settings) -> Any:
    read = (
        "vocabulary inputs_add_eos files mixture_or_task_name mode split data_dir templates module"
    )
    sources = job.make("mtf.t5x.evaluator.register_sources", **job.below("", read))
    return job.make(
        "t5x.infer.infer",
        **_of_checkpoint(job, sources, job("split"), ""),
        **job.below("", "mode checkpoint_period shard_id num_shards"),
        # TensorFlow cannot save the state of a Python generator. A new run skips finished parts.
        checkpoint_ds_iter=False,
    )


# Name of a job class → function that returns the config of the corresponding T5X function.
JOBS: Mapping[str, Callable[[Settings], Any]] = {
    "Train": _train,
    "Evaluate": _evaluate,
    "Infer": _infer,
}
