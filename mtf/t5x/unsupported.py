"""What T5X cannot express: settings that are refused, and settings that change no result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import fiddle as fdl

from mtf.config import tree

if TYPE_CHECKING:
    import conversion

# Setting → why a run with T5X does not need it. They change no loss, parameter or prediction.
_UNUSED_IN_TRAINING: Mapping[str, str] = {
    "model.network.scan_layers": "T5X runs the layers one after another. Its scanned network has "
    "a relative position bias per layer, which is another model.",
    "model.network.remat_policy": "T5X's unrolled network keeps all activations, so it needs more "
    "memory than a recipe that recomputes them.",
    "trainer.loss_chunk_elements": "T5X computes the loss of all positions at once.",
    "trainer.trim_padding": "T5X pads all rows to the full lengths.",
    "trainer.hang_seconds": "T5X's loop is not watched.",
    "trainer.early_stopping_patience": "Used only with checkpoint.save.metric_name_to_monitor.",
    "checkpoint.save.keep_best": "Used only with checkpoint.save.metric_name_to_monitor.",
    "checkpoint.save.metric_mode": "Used only with checkpoint.save.metric_name_to_monitor.",
    "checkpoint.save.keep_checkpoints_without_metrics": "Used only with "
    "checkpoint.save.metric_name_to_monitor.",
    "checkpoint.restore.step": "T5X does not check the step of the initial checkpoint.",
    "num_samples": "T5X prints no examples at the end.",
}
UNUSED: Mapping[str, Mapping[str, str]] = {
    "Train": _UNUSED_IN_TRAINING,
    "Evaluate": {
        "metric_mode": "Used only with checkpoint_steps.",
        "metric_name_to_monitor": "Used only with checkpoint_steps.",
        "hang_seconds": "T5X's evaluation is not watched.",
    },
    # The checkpoint is opened with these; see `mtf.t5x.opening`.
    "Infer": {
        **dict.fromkeys(("step", "vocabulary"), "Read when the checkpoint is opened."),
        "hang_seconds": "T5X's inference is not watched.",
    },
}


class Refusal(NamedTuple):
    """A setting that T5X has only with some values.

    Attributes:
      path: path of the setting.
      is_expressible: function of the value and the whole config.
      reason: why T5X cannot express other values, and what to do.
    """

    path: str
    is_expressible: Callable[[Any, fdl.Config], bool]
    reason: str


def _periods_fit(period: int | None, config: fdl.Config) -> bool:
    """T5X trains in rounds of the shorter of the two periods."""
    save, evaluate = period or config.train_steps, config.trainer.eval_period
    evaluate = evaluate or (config.evaluator.period if config.evaluator is not None else None)
    return evaluate is None or max(save, evaluate) % min(save, evaluate) == 0


def _is_decoding_of_t5x(decoding: Any, config: fdl.Config) -> bool:
    if decoding is None:
        return True
    data = config if type_name(config) == "Infer" else config.data
    return (
        decoding.max_length == data.task_feature_lengths["targets"]
        and decoding.length_penalty_form == "t5x"
        and decoding.num_return == 1
        and decoding.seed == 0
    )


def _is_writable(folder: str | None, config: fdl.Config) -> bool:
    return folder is None or not folder.startswith("s3://")


def _is_readable(path: str, config: fdl.Config) -> bool:
    from conversion import ConversionError, open_checkpoint
    from conversion.mesh_tensorflow import is_prefix

    if "://" in path:  # Not opened here, to save time.
        return not is_prefix(path)
    try:
        return is_of_t5x(open_checkpoint(path))
    except ConversionError:
        return True  # The run says what is wrong.


def is_of_t5x(checkpoint: conversion.Checkpoint) -> bool:
    """Returns whether the network of T5X (unrolled) can start from a checkpoint."""
    return checkpoint.layout in ("t5x-zarr", "orbax") and not checkpoint.is_scanned


_FSDP = (
    "T5X's mesh has no axis fsdp. To shard parameters over the data axis as well, set "
    "partitioner.fsdp=1 and partitioner.logical_axis_rules to FULLY_SHARDED_AXIS_RULES."
)
OF_T5X = (
    "T5X is started only from checkpoints of mtf and of T5X's unrolled network, not from Hugging "
    "Face directories or checkpoints of Mesh TensorFlow or of T5X's scanned network. Convert those "
    "with `python -m mtf.convert CHECKPOINT OUT_DIR --to t5x`"
)
_DECODING = (
    "T5X decodes as many tokens as task_feature_lengths['targets'], with "
    "length_penalty_form='t5x', num_return=1 and seed 0."
)
_S3 = "T5X writes with TensorFlow, which has no s3://; expected a local directory or gs://."

TRAIN = (
    Refusal("model_dir", _is_writable, _S3),
    Refusal(
        "model.network.relative_attention_num_buckets",
        lambda number, _: number == 32,
        "T5X's network always has 32 buckets.",
    ),
    Refusal(
        "model.network.relpos_bias_per_layer",
        lambda per_layer, _: not per_layer,
        "In T5X's unrolled network, the layers of a stack share a relative position bias.",
    ),
    Refusal(
        "model.network.relative_attention_max_distance",
        lambda distance, _: distance == 128,
        "T5X's network always has a maximum distance of 128.",
    ),
    Refusal(
        "model.network.lora",
        lambda lora, _: lora is None,
        "T5X's network has no adapters.",
    ),
    Refusal(
        "trainer.ema",
        lambda ema, _: ema is None,
        "T5X keeps no average of the parameters.",
    ),
    Refusal(
        "trainer.frozen",
        lambda patterns, _: not patterns,
        "T5X's Adafactor trains all parameters.",
    ),
    Refusal(
        "trackers",
        lambda trackers, _: not trackers,
        "T5X's loop writes to TensorBoard only.",
    ),
    Refusal(
        "trainer.skip_nonfinite_updates",
        lambda skips, _: not skips,
        "T5X's Adafactor can skip NaN in single parameters, but not whole updates.",
    ),
    Refusal(
        "trainer.eval_period",
        lambda period, config: (
            period is None or config.evaluator is None or period == config.evaluator.period
        ),
        "T5X has one period for both evaluations; set it to the value of evaluator.period.",
    ),
    Refusal(
        "partitioner.fsdp",
        lambda fsdp, _: fsdp == 1,
        _FSDP,
    ),
    Refusal(
        "checkpoint.save.period",
        _periods_fit,
        "T5X requires that of this period and the period of evaluation, one is a multiple of the "
        "other.",
    ),
    Refusal(
        "checkpoint.save.dtype",
        lambda dtype, _: dtype == "float32",
        "T5X's Orbax checkpoints ignore the dtype, and are float32.",
    ),
    Refusal(
        "checkpoint.save.metric_name_to_monitor",
        lambda name, _: name is None,
        "T5X deletes the latest checkpoint when it keeps the best, so the run could not be "
        "resumed from it.",
    ),
    Refusal(
        "checkpoint.restore.path",
        _is_readable,
        f"{OF_T5X}.",
    ),
    Refusal(
        "evaluator.decoding",
        _is_decoding_of_t5x,
        _DECODING,
    ),
)

EVALUATE = (
    Refusal(
        "checkpoint_steps",
        lambda steps, _: steps is None,
        "T5X finds no best step; evaluate one checkpoint at a time.",
    ),
    Refusal("partitioner.fsdp", lambda fsdp, _: fsdp == 1, _FSDP),
    Refusal("decoding", _is_decoding_of_t5x, _DECODING),
    Refusal("output_dir", _is_writable, _S3),
)

INFER = EVALUATE[1:]

REFUSALS: Mapping[str, tuple[Refusal, ...]] = {
    "Train": TRAIN,
    "Evaluate": EVALUATE,
    "Infer": INFER,
}


def type_name(component: Any) -> str:
    """Returns the name of a component's class."""
    return fdl.get_callable(component).__name__


def get(config: fdl.Config, path: str) -> Any:
    """Returns the value at a path; None below a component that is None."""
    value: Any = config
    for field in path.split("."):
        if value is None:
            return None
        value = getattr(value, field)
    return value


def find_open_parts(config: fdl.Config) -> Iterator[str]:
    """Yields a message for each part of a job that is the user's own code (docs/extending.md)."""
    if type_name(config) != "Train":
        return
    if config.model.loss_fn is not None:
        yield "model.loss_fn is set: T5X computes its own cross-entropy."
    if _is_config_of(config.data, "OwnDataConfig"):
        yield "data = @OwnDataConfig: with T5X, mtf does not read data of your own."
    optimizer = config.optimizer
    if type_name(optimizer) not in ("AdafactorConfig", "AdamWConfig"):
        yield (
            f"optimizer = @{type_name(optimizer)}: with T5X, mtf runs only AdafactorConfig and "
            "AdamWConfig, because T5X keeps the state of optax's optimizers in another way."
        )
    elif not _is_config_of(optimizer.learning_rate, "ScheduleConfig"):
        yield (
            "optimizer.learning_rate is a function: T5X's schedules are products of named factors; "
            "expected a ScheduleConfig."
        )


def _is_config_of(value: Any, name: str) -> bool:
    return isinstance(value, fdl.Buildable) and type_name(value) == name


def find_refusals(config: fdl.Config) -> Iterator[str]:
    """Yields a message for each setting of a job, with defaults set, that T5X lacks."""
    for path, is_expressible, reason in REFUSALS[type_name(config)]:
        holder = get(config, path.rpartition(".")[0]) if "." in path else config
        if holder is None:
            continue
        value = get(config, path)
        if not is_expressible(value, config):
            shown = f"@{type_name(value)}" if isinstance(value, fdl.Buildable) else repr(value)
            yield f"{path} = {shown}: {reason}"


def notes(config: fdl.Config) -> Iterator[tuple[str, str]]:
    """Yields the settings that T5X ignores, although this job uses them, with the reason."""
    plain = {"model.network.scan_layers": False, "model.network.remat_policy": "none"}
    if type_name(config) != "Train":
        return
    config = tree.freeze_defaults(config)
    for path, value in plain.items():
        if get(config, path) != value:
            yield path, _UNUSED_IN_TRAINING[path]
