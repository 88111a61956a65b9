"""Builds the config of a job from the settings that gin files bind."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import fiddle as fdl

from mtf.base.errors import UserError, did_you_mean
from mtf.builders import checkpoint, vocabulary
from mtf.builders.model import is_scanned
from mtf.checkpoints import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig
from mtf.data import ByteVocabulary, HubStreamConfig, SentencePieceVocabulary, TaskMixtureConfig
from mtf.data.sources.datasets import hub_name
from mtf.data.tasks.mixtures import list_mixtures
from mtf.data.tasks.text import text_tasks
from mtf.evaluation import InferEvalConfig
from mtf.inference import DecodingConfig
from mtf.jobs import Evaluate, Infer, Train
from mtf.models import ModelConfig, T5Config
from mtf.partitioning import FULLY_SHARDED_AXIS_RULES, PartitionerConfig
from mtf.training import AdafactorConfig, ScheduleConfig, TrainerConfig

Settings = dict[str, Any]
Remark = Callable[[str], None]  # adds a sentence to the recipe's remarks

# Tasks that mtf streams from the Hugging Face hub, as in mtf's recipes.
_STREAMED = ("c4_v220_span_corruption", "rlm_span_corruption_stream")
_NUM_STREAMS = HubStreamConfig.num_streams  # the default; must divide the batch size
# Mesh TensorFlow checkpoint from Google → T5X's conversion of it. {} is the model size.
_CONVERTED = {
    "t5.1.1.lm100k.{}": "t5_1_1_lm100k_{}",
    "t5.1.1.{}": "t5_1_1_{}",
    "mt5/{}": "mt5_{}",
    "byt5/{}": "byt5_{}",
}
_SIZES = ("small", "base", "large", "xl", "xxl")
_BUCKET = "gs://t5-data/pretrained_models"


@dataclasses.dataclass(frozen=True)
class Command:
    """The parsed command line of T5X or t5_mesh_transformer.

    Attributes:
      files: the gin files.
      bindings: `NAME=VALUE` bindings, which are applied after the files.
      search_paths: folders that are searched for gin files.
      cache_dirs: directories that contain SeqIO caches.
      modules: modules that may register tasks.
      model_dir: the run directory of t5_mesh_transformer and xm_launch; otherwise, gin files bind
        it.
      tpu: whether the run uses a TPU; only then does t5_mesh_transformer compute in bfloat16.
      skip_unknown: whether bindings that are not understood are left out instead of refused.
    """

    files: tuple[str, ...]
    bindings: tuple[str, ...] = ()
    search_paths: tuple[str, ...] = ()
    cache_dirs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    model_dir: str | None = None
    tpu: bool = False
    skip_unknown: bool = False


def train(settings: Settings, command: Command, remark: Remark) -> fdl.Config:
    """Returns the config of a training run."""
    restored, step = _restored(settings, remark)
    trainer = _below(settings, "trainer.")
    evaluator = _evaluator(settings, trainer)
    if settings.setdefault("data.eval_split", None) is None:
        trainer["eval_period"] = None
    steps = settings.get("train_steps")
    if settings.get("relative_steps") is not None:
        if step is None:
            raise UserError(
                "relative_steps counts from the step of the initial checkpoint. The path of that "
                "checkpoint contains no step, so set total_steps (TRAIN_STEPS) instead."
            )
        steps = step + settings["relative_steps"]
    return fdl.Config(
        Train,
        model=_model(settings),
        data=_training_data(settings, command, remark),
        optimizer=_optimizer(settings),
        train_steps=steps,
        trainer=fdl.Config(TrainerConfig, **trainer),
        partitioner=_partitioner(settings, remark),
        checkpoint=_checkpoint(settings, restored),
        evaluator=evaluator,
        **_given(settings, "batch_size", "model_dir", "random_seed"),
    )


def evaluation(settings: Settings, command: Command, remark: Remark) -> fdl.Config:
    """Returns the config of an evaluation."""
    data = {"pack": False, "eval_split": settings.get("data.eval_split")}
    return fdl.Config(
        Evaluate,
        data=_mixture(settings, command, remark, data),
        partitioner=_partitioner(settings, remark),
        decoding=_decoding(settings),
        **_given(settings, "checkpoint", "batch_size", "dtype", "output_dir", "checkpoint_steps"),
    )


def inference(settings: Settings, command: Command, remark: Remark) -> fdl.Config:
    """Returns the config of batch inference."""
    if settings.get("checkpoint_steps") == "all":
        raise UserError(
            "RestoreCheckpointConfig.mode = 'all' has no equivalent for inference, because mtf's "
            "`Infer` reads only one checkpoint. Set mode = 'specific' and path = 'CHECKPOINT'."
        )
    path = settings.get("data.vocabulary.path", "")
    released = {vocabulary.T5_PATH: "t5", vocabulary.MT5_PATH: "mt5"}
    words = "byt5" if "bytes" in settings.get("parts", ()) else released.get(path, path or None)
    mixture = settings["data.mixture_or_task_name"]
    return fdl.Config(
        Infer,
        mixture_or_task_name=mixture,
        split=settings.get("data.eval_split") or "validation",
        vocabulary=words,
        decoding=_decoding(settings, always=True),
        task_feature_lengths=_lengths(settings),
        module=_module(mixture, settings, command, remark),
        partitioner=_partitioner(settings, remark),
        **_given(settings, "checkpoint", "batch_size", "dtype", "output_dir", "mode"),
        **_given(settings, "checkpoint_period", "shard_id", "num_shards"),
    )


def _given(settings: Settings, *names: str) -> dict[str, Any]:
    return {name: settings[name] for name in names if name in settings}


def _below(settings: Settings, prefix: str) -> dict[str, Any]:
    """Returns a dict mapping names to values for the settings directly below a prefix."""
    parts = ((path.rpartition(".")[::2], value) for path, value in settings.items())
    return {name: value for (place, name), value in parts if f"{place}." == prefix}


def _model(settings: Settings) -> fdl.Config:
    network = _below(settings, "model.network.")
    if network.get("vocab_size") is None:
        raise UserError(
            "The gin files do not define a network: they do not bind network.T5Config.vocab_size. "
            "Add a model's gin file, such as t5x/examples/t5/t5_1_1/base.gin."
        )
    if not network.get("relpos_bias_per_layer"):  # T5X's scalable_t5 has it, and scans its layers.
        network.setdefault("scan_layers", is_scanned(network["num_heads"] * network["head_dim"]))
    values = _below(settings, "model.")
    return fdl.Config(ModelConfig, network=fdl.Config(T5Config, **network), **values)


def _optimizer(settings: Settings) -> Any:
    if "optimizer" in settings:  # With optax, T5X only logs the trainer's schedule.
        return settings["optimizer"]
    rate = fdl.Config(ScheduleConfig, **_below(settings, "optimizer.learning_rate."))
    return fdl.Config(AdafactorConfig, learning_rate=rate, **_below(settings, "optimizer."))


def _partitioner(settings: Settings, remark: Remark) -> fdl.Config:
    values = _below(settings, "partitioner.")
    if values.get("model_parallel_submesh") is not None:
        values.pop("num_partitions", None)  # T5X ignores num_partitions here.
    dims = tuple(settings.get(f"axis_rules.{name}", 1) for name in ("activations", "parameters"))
    if dims == (2, 2):
        values["logical_axis_rules"] = FULLY_SHARDED_AXIS_RULES
    elif dims != (1, 1):
        remark(
            f"standard_logical_axis_rules with dimensions {dims[0]} and {dims[1]} has no "
            "equivalent; the recipe uses the standard rules (dimensions 1 and 1)."
        )
    return fdl.Config(PartitionerConfig, **values)


def _restored(settings: Settings, remark: Remark) -> tuple[fdl.Config | None, int | None]:
    """Returns the initial checkpoint and its step (None if unknown); from scratch, (None, 0)."""
    values = _below(settings, "checkpoint.restore.")
    path = values.pop("path", None)
    if path is None:
        return None, 0
    name = _released(path)
    if name is None:
        step = path.rstrip("/").replace("-", "_").rpartition("_")[2]
        config = fdl.Config(RestoreCheckpointConfig, path=path, **values)
        return config, int(step) if step.isdigit() else None
    start = checkpoint.start(name)
    if start.path != path:
        remark(f"The recipe starts from {name}, T5X's conversion of {path}.")
    fdl.assign(start, **values | {"mode": "specific"})
    return start, checkpoint.RELEASED_STEPS[name]


def _released(path: str) -> str | None:
    """Returns the name of the released checkpoint at a path, or None if there is none."""
    names = {checkpoint.start(name).path: name for name in checkpoint.RELEASED_STEPS}
    for original, converted in _CONVERTED.items():
        for size in _SIZES:
            name = converted.format(size)
            step = checkpoint.RELEASED_STEPS[name]
            names[f"{_BUCKET}/{original.format(size)}/model.ckpt-{step}"] = name
    return names.get(path.rstrip("/"))


def _checkpoint(settings: Settings, restored: fdl.Config | None) -> fdl.Config:
    save = {"period": None, "keep": None} | _below(settings, "checkpoint.save.")
    if "best" in settings.get("parts", set()):
        save |= {"keep_best": save["keep"] or 1, "keep": None}
    saved = fdl.Config(SaveCheckpointConfig, **save)
    return fdl.Config(CheckpointConfig, save=saved, restore=restored)


def _evaluator(settings: Settings, trainer: dict[str, Any]) -> fdl.Config | None:
    if "infer_eval_data" not in settings.get("parts", set()):
        return None
    return fdl.Config(
        InferEvalConfig,
        period=trainer.get("eval_period") or 1000,
        num_examples=settings.get("evaluator.num_examples"),
        decoding=_decoding(settings),
    )


def _decoding(settings: Settings, *, always: bool = False) -> fdl.Config | None:
    """Returns the decoding config, or None for beam search with one beam if `always` is False."""
    values = _below(settings, "decoding.")
    method = values.pop("method", "beam")
    if "temperature_sample" in settings.get("parts", set()):
        method = "greedy" if values.get("top_k") == 1 else "sample"
        values = {} if method == "greedy" else values
        values.pop("num_beams", None)
    elif method == "beam":
        values["num_beams"] = values.get("num_beams") or 1
    if values == {"num_beams": 1} and method == "beam" and not always:
        return None
    values.setdefault("max_length", _lengths(settings)["targets"])
    return fdl.Config(DecodingConfig, method=method, **values)


def _vocabulary(settings: Settings) -> fdl.Config:
    extra_ids = settings.get("data.vocabulary.extra_ids", 0)
    parts = settings.get("parts", set())
    if {"pieces", "bytes"} <= parts:
        raise UserError("input_vocabulary and output_vocabulary differ; mtf has one vocabulary.")
    if "bytes" in parts:
        return fdl.Config(ByteVocabulary, extra_ids=extra_ids)
    path = settings.get("data.vocabulary.path")
    if path in (None, vocabulary.T5_PATH):
        return vocabulary.t5()
    if path == vocabulary.MT5_PATH:
        return vocabulary.mt5()
    return fdl.Config(SentencePieceVocabulary, path=path, extra_ids=extra_ids)


def _lengths(settings: Settings) -> dict[str, int]:
    lengths = settings.get("data.task_feature_lengths") or {}
    if set(lengths) != {"inputs", "targets"}:
        raise UserError(
            f"TASK_FEATURE_LENGTHS = {lengths!r}: expected the lengths of 'inputs' and "
            "'targets' and of no other feature, for example {'inputs': 512, 'targets': 128}."
        )
    return dict(lengths)


def _training_data(settings: Settings, command: Command, remark: Remark) -> fdl.Config:
    given = _below(settings, "data.")
    data = _given(given, "shuffle", "pack", "seed", "eval_split", "split")
    shared = {"vocabulary": _vocabulary(settings), "task_feature_lengths": _lengths(settings)}
    name = settings["data.mixture_or_task_name"]
    cached = settings.get("data.use_cached") and command.cache_dirs
    if name not in _STREAMED or cached:
        return _mixture(settings, command, remark, {"loader": "seqio"} | data)
    hint = " To read a SeqIO cache instead, pass --seqio_additional_cache_dirs=DIR."
    wants_cache = settings.get("data.use_cached") and name == "c4_v220_span_corruption"
    remark(f"{name} is streamed from the Hugging Face hub.{hint if wants_cache else ''}")
    _module(name, settings, command, remark)
    streams = {"num_streams": math.gcd(_NUM_STREAMS, settings.get("batch_size") or _NUM_STREAMS)}
    task = text_tasks()[name]
    stream = {"dataset": hub_name(task.dataset), "inputs_add_eos": task.inputs_add_eos}
    stream |= {} if task.subset is None else {"subsets": {task.subset: 1.0}}
    objective = fdl.Config(type(task.objective), **vars(task.objective))
    return fdl.Config(HubStreamConfig, objective=objective, **stream, **shared, **data, **streams)


def _mixture(
    settings: Settings, command: Command, remark: Remark, data: dict[str, Any]
) -> fdl.Config:
    name = settings["data.mixture_or_task_name"]
    keywords = {
        "mixture_or_task_name": name,
        "vocabulary": _vocabulary(settings),
        "task_feature_lengths": _lengths(settings),
        **data,
        "module": _module(name, settings, command, remark),
    }
    if settings.get("data.use_cached") and data.get("loader") == "seqio":
        if command.cache_dirs:
            folders = command.cache_dirs
            keywords["cache_dir"] = folders[0] if len(folders) == 1 else folders
            keywords["use_cached"] = True
        else:
            remark(
                f"{name} is tokenized during training, because no directory with SeqIO caches was "
                "given. To read a cache instead, pass --seqio_additional_cache_dirs=DIR."
            )
    return fdl.Config(TaskMixtureConfig, **keywords)


def _module(name: str, settings: Settings, command: Command, remark: Remark) -> str | None:
    """Returns the module that registers a mixture; None if mtf defines it or no module is given."""
    given = settings.get("data.module")
    modules = list(dict.fromkeys([*([given] if given else []), *command.modules]))
    if name in list_mixtures() or name in text_tasks():
        if modules:
            remark(f"mtf defines {name}; the definition in {', '.join(modules)} is not used.")
        return None
    custom = [module for module in modules if not module.startswith("t5.")]
    chosen = next(iter(custom or modules), None)
    if chosen is None:
        hint = did_you_mean(name, [*list_mixtures(), *text_tasks()])
        remark(
            f"mtf does not define {name}; set data.module to the module that registers it.{hint}"
        )
    if len(custom) > 1:
        remark(
            f"data.module is {chosen}. If {', '.join(custom[1:])} also registers tasks, import it "
            f"in {chosen}."
        )
    return chosen
