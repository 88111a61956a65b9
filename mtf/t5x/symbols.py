"""The table from mtf's settings to T5X's functions and classes.

A `Symbol` is a function or class of T5X; its arguments are

* a path in the job's config, such as `"model.z_loss"`, whose value is passed on unchanged,
* `Adapted(function, paths)`, where T5X spells or means a value differently,
* `Fixed(value)`, where T5X has an argument that mtf does not have,
* another `Symbol`, or `Given(path, symbol)`, which is None if the config has None at `path`, or
  `ByType(path, symbols)`, which depends on the class of the component at `path`, or
  `ByValue(function, paths, symbols)`, which depends on values.

Arguments that are missing here keep T5X's defaults. Symbols are written as dotted names, so this
module imports no T5X.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from mtf.t5x import adapters


class Adapted(NamedTuple):
    """The result of a function of the values at some paths."""

    function: Callable[..., Any]
    paths: tuple[str, ...]


class Fixed(NamedTuple):
    """A value that does not depend on the config."""

    value: Any


class Symbol(NamedTuple):
    """A function or class of T5X, and where its arguments come from.

    Attributes:
      name: dotted name.
      arguments: name of an argument → where its value comes from.
      partial: whether T5X calls it later with more arguments.
    """

    name: str
    arguments: Mapping[str, Value]
    partial: bool = False


class Given(NamedTuple):
    """A symbol, or None if the value at `path` is None."""

    path: str
    symbol: Value


class ByType(NamedTuple):
    """The symbol for the class of the component at `path`, by the name of the class."""

    path: str
    symbols: Mapping[str, Symbol]


class ByValue(NamedTuple):
    """The symbol that a function of the values at some paths names."""

    function: Callable[..., str]
    paths: tuple[str, ...]
    symbols: Mapping[str, Symbol]


Value: TypeAlias = "str | Adapted | Fixed | Symbol | Given | ByType | ByValue"

_NETWORK = Symbol(
    "t5x.examples.t5.network.T5Config",
    {
        "vocab_size": "model.network.vocab_size",
        "dtype": "model.network.dtype",
        "emb_dim": "model.network.emb_dim",
        "num_heads": "model.network.num_heads",
        "num_encoder_layers": "model.network.num_encoder_layers",
        "num_decoder_layers": "model.network.num_decoder_layers",
        "head_dim": "model.network.head_dim",
        "mlp_dim": "model.network.mlp_dim",
        "mlp_activations": "model.network.mlp_activations",
        "dropout_rate": "model.network.dropout_rate",
        "logits_via_embedding": "model.network.logits_via_embedding",
    },
)

_SCHEDULE = Symbol(
    "t5x.utils.create_learning_rate_scheduler",
    {
        name: f"optimizer.learning_rate.{name}"
        for name in (
            *("factors", "base_learning_rate", "warmup_steps", "decay_factor", "steps_per_decay"),
            *("steps_per_cycle", "step_offset", "min_learning_rate"),
        )
    },
)

_ADAFACTOR = Symbol(
    "t5x.adafactor.Adafactor",
    {
        "factored": "optimizer.factored",
        "multiply_by_parameter_scale": "optimizer.multiply_by_parameter_scale",
        "beta1": "optimizer.beta1",
        "decay_rate": "optimizer.decay_rate",
        "step_offset": "optimizer.step_offset",
        "clipping_threshold": "optimizer.clipping_threshold",
        "weight_decay_rate": "optimizer.weight_decay_rate",
        "min_dim_size_to_factor": "optimizer.min_dim_size_to_factor",
        "epsilon1": "optimizer.epsilon1",
        "epsilon2": "optimizer.epsilon2",
        "logical_factor_rules": Adapted(
            adapters.logical_factor_rules, ("optimizer.logical_factor_rules",)
        ),
        "weight_decay_rate_lr_exponent": "optimizer.weight_decay_rate_lr_exponent",
        "global_norm_clip_threshold": "optimizer.global_norm_clip_threshold",
    },
)

_ADAMW = Symbol(
    "mtf.t5x.optimizers.AdamW",
    {
        name: f"optimizer.{name}"
        for name in (
            *("beta1", "beta2", "epsilon", "weight_decay_rate"),
            "global_norm_clip_threshold",
        )
    },
)

_VOCABULARY = Symbol("mtf.seqio.tasks.seqio_vocabulary", {"vocabulary": "data.vocabulary"})

_TRAINER: dict[str, Value] = {
    "learning_rate_fn": _SCHEDULE,
    "num_microbatches": Adapted(adapters.num_microbatches, ("trainer.num_microbatches",)),
}

_MODEL = Symbol(
    "t5x.models.EncoderDecoderModel",
    {
        "module": Symbol("t5x.examples.t5.network.Transformer", {"config": _NETWORK}),
        "input_vocabulary": _VOCABULARY,
        "output_vocabulary": _VOCABULARY,
        "optimizer_def": ByType(
            "optimizer", {"AdafactorConfig": _ADAFACTOR, "AdamWConfig": _ADAMW}
        ),
        "decode_fn": Adapted(adapters.decode_fn, ("evaluator.decoding",)),
        "label_smoothing": "model.label_smoothing",
        "z_loss": "model.z_loss",
        "loss_normalizing_factor": Adapted(
            adapters.loss_normalizing_factor,
            (
                "model.loss_normalizing_factor",
                "trainer.num_microbatches",
                "batch_size",
                "data.task_feature_lengths",
            ),
        ),
        "default_decoder_params": Adapted(adapters.decoder_params, ("evaluator.decoding",)),
    },
)

_PARTITIONER = Symbol(
    "mtf.t5x.partitioning.PjitPartitioner",
    {
        "num_partitions": Adapted(
            adapters.num_partitions,
            ("partitioner.num_partitions", "partitioner.model_parallel_submesh"),
        ),
        "model_parallel_submesh": "partitioner.model_parallel_submesh",
        "logical_axis_rules": Adapted(
            adapters.logical_axis_rules, ("partitioner.logical_axis_rules",)
        ),
    },
)

_TRAIN_DATA: dict[str, Value] = {
    "mixture_or_task_name": Adapted(adapters.data_name, ("data",)),
    "task_feature_lengths": "data.task_feature_lengths",
    "batch_size": "batch_size",
    "shuffle": "data.shuffle",
    "seed": "data.seed",
    "use_cached": Adapted(adapters.use_cached, ("data",)),
    "pack": "data.pack",
}
_EVAL_DATA: dict[str, Value] = {
    **_TRAIN_DATA,
    "split": Adapted(adapters.eval_split, ("data",)),
    "shuffle": Fixed(False),
}

_EVALUATOR = Symbol("seqio.Evaluator", {"logger_cls": Adapted(adapters.loggers, ())}, partial=True)
_NO_SUMMARY = Symbol("mtf.t5x.datasets.summarize_nothing", {}, partial=True)

_RULES = ("checkpoint.restore.assignment_map", "checkpoint.restore.fallback_to_scratch")

TRAIN = Symbol(
    "t5x.train.train",
    {
        "model": _MODEL,
        "train_dataset_cfg": Symbol(
            "t5x.utils.DatasetConfig",
            {**_TRAIN_DATA, "split": Adapted(adapters.split, ("data",))},
        ),
        "train_eval_dataset_cfg": Given(
            "trainer.eval_period", Symbol("t5x.utils.DatasetConfig", _EVAL_DATA)
        ),
        "infer_eval_dataset_cfg": Given(
            "evaluator",
            Symbol(
                "t5x.utils.DatasetConfig",
                {
                    **_EVAL_DATA,
                    "mixture_or_task_name": Symbol(
                        "mtf.t5x.evaluator.register_held_out",
                        {
                            "name": Adapted(adapters.data_name, ("data",)),
                            "split": Adapted(adapters.eval_split, ("data",)),
                            "data": "data",
                            "evaluator": "evaluator",
                        },
                    ),
                    "use_cached": Fixed(False),
                    "pack": Fixed(False),
                },
            ),
        ),
        "checkpoint_cfg": Symbol(
            "t5x.utils.CheckpointConfig",
            {
                "save": Symbol(
                    "t5x.utils.SaveCheckpointConfig",
                    {
                        "dtype": "checkpoint.save.dtype",
                        "period": Adapted(
                            adapters.save_period, ("checkpoint.save.period", "train_steps")
                        ),
                        "checkpoint_steps": Adapted(
                            adapters.list_or_none, ("checkpoint.save.checkpoint_steps",)
                        ),
                        "keep": "checkpoint.save.keep",
                        "save_dataset": Fixed(True),
                    },
                ),
                "restore": Given(
                    "checkpoint.restore",
                    Symbol(
                        "t5x.utils.RestoreCheckpointConfig",
                        {
                            "path": Adapted(
                                adapters.restore_path,
                                ("checkpoint.restore.path", "checkpoint.restore.mode"),
                            ),
                            "mode": "checkpoint.restore.mode",
                            "assignment_map": Adapted(adapters.assignment_map, _RULES),
                            "fallback_to_scratch": Adapted(adapters.fallback_to_scratch, _RULES),
                            "dtype": Fixed("float32"),
                        },
                    ),
                ),
            },
        ),
        "partitioner": _PARTITIONER,
        "trainer_cls": ByValue(
            adapters.loss_is_normalized_by,
            ("model.loss_normalizing_factor", "trainer.num_microbatches"),
            {
                "microbatch": Symbol("t5x.trainer.Trainer", _TRAINER, partial=True),
                "batch": Symbol("mtf.t5x.microbatches.Trainer", _TRAINER, partial=True),
            },
        ),
        "model_dir": "model_dir",
        "total_steps": "train_steps",
        "eval_steps": "trainer.eval_steps",
        "eval_period": Adapted(adapters.eval_period, ("trainer.eval_period", "evaluator")),
        "stats_period": "trainer.stats_period",
        "random_seed": "random_seed",
        "summarize_config_fn": _NO_SUMMARY,
        "inference_evaluator_cls": Given("evaluator", _EVALUATOR),
        "get_dataset_fn": Symbol("mtf.t5x.datasets.get_dataset", {"data": "data"}, partial=True),
        "train_eval_get_dataset_fn": Symbol(
            "mtf.t5x.datasets.get_training_eval_datasets", {"data": "data"}, partial=True
        ),
        "verify_matching_vocabs_fn": Symbol(
            "mtf.t5x.datasets.verify_matching_vocabs",
            {"vocabulary": "data.vocabulary"},
            partial=True,
        ),
    },
)

# The paths of jobs that open a checkpoint are those of `mtf.t5x.opening.OpenedJob`.
_OPENED_MODEL = Symbol(
    "t5x.models.EncoderDecoderModel",
    {
        "module": Symbol("t5x.examples.t5.network.Transformer", {"config": _NETWORK}),
        "input_vocabulary": _VOCABULARY,
        "output_vocabulary": _VOCABULARY,
        "optimizer_def": Fixed(None),
        "decode_fn": Adapted(adapters.decode_fn, ("decoding",)),
        "default_decoder_params": Adapted(adapters.decoder_params, ("decoding",)),
    },
)
_OPENED_CHECKPOINT = Symbol(
    "t5x.utils.RestoreCheckpointConfig",
    {"path": "checkpoint", "mode": Fixed("specific"), "dtype": "dtype"},
)

EVALUATE = Symbol(
    "t5x.eval.evaluate",
    {
        "model": _OPENED_MODEL,
        "dataset_cfg": Symbol(
            "t5x.utils.DatasetConfig",
            {
                "mixture_or_task_name": Symbol(
                    "mtf.t5x.evaluator.register_tasks",
                    {"name": Adapted(adapters.data_name, ("data",)), "data": "data"},
                ),
                "task_feature_lengths": "data.task_feature_lengths",
                "split": Adapted(adapters.eval_split, ("data",)),
                "batch_size": "batch_size",
                "shuffle": Fixed(False),
                "seed": Fixed(0),
            },
        ),
        "restore_checkpoint_cfg": _OPENED_CHECKPOINT,
        "partitioner": _PARTITIONER,
        "output_dir": "output_dir",
        "inference_evaluator_cls": _EVALUATOR,
        "summarize_config_fn": _NO_SUMMARY,
    },
)

_SOURCES = Symbol(
    "mtf.t5x.evaluator.register_sources",
    {
        "vocabulary": "data.vocabulary",
        "inputs_add_eos": "data.inputs_add_eos",
        **{
            name: f"data.{name}"
            for name in (
                *("files", "mixture_or_task_name", "mode", "split", "data_dir", "templates"),
                "module",
            )
        },
    },
)

INFER = Symbol(
    "t5x.infer.infer",
    {
        "mode": "data.mode",
        "model": _OPENED_MODEL,
        "dataset_cfg": Symbol(
            "t5x.utils.DatasetConfig",
            {
                "mixture_or_task_name": _SOURCES,
                "task_feature_lengths": "data.task_feature_lengths",
                "split": "data.split",
                "batch_size": "batch_size",
                "shuffle": Fixed(False),
                "seed": Fixed(0),
            },
        ),
        "restore_checkpoint_cfg": _OPENED_CHECKPOINT,
        "partitioner": _PARTITIONER,
        "output_dir": "output_dir",
        "checkpoint_period": "data.checkpoint_period",
        "shard_id": "data.shard_id",
        "num_shards": "data.num_shards",
        # TensorFlow cannot save the position in examples from Python; finished parts are skipped.
        "checkpoint_ds_iter": Fixed(False),
        "summarize_config_fn": _NO_SUMMARY,
    },
)

# Class of a job → the function of T5X.
JOBS: Mapping[str, Symbol] = {"Train": TRAIN, "Evaluate": EVALUATE, "Infer": INFER}
