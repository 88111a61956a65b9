"""Lists the settings that T5X does not support. mtf refuses some; T5X ignores the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import fiddle as fdl

from conversion import Checkpoint, ConversionError, open_checkpoint
from conversion.formats import format_of, format_of_prefix
from mtf.config import tree

# Setting that T5X ignores and that affects only memory or time → (T5X's equivalent, reason).
_IGNORED: Mapping[str, tuple[Any, str]] = {
    "model.network.scan_layers": (
        False,
        "mtf uses T5X's unrolled network, because T5X's scanned network has a relative position "
        "bias in each layer, which makes it a different model.",
    ),
    "model.network.remat_policy": (
        "none",
        "T5X's unrolled network keeps all activations, so it needs more memory than mtf, which "
        "recomputes them.",
    ),
}
# Job → settings that T5X does not use. They do not affect losses, parameters or predictions.
UNUSED: Mapping[str, frozenset[str]] = {
    "Train": frozenset(
        {
            *_IGNORED,
            *("trainer.loss_chunk_elements", "trainer.trim_padding", "trainer.hang_seconds"),
            *("checkpoint.restore.step", "num_samples", "auto_find_batch_size"),
            # Used only with checkpoint.save.metric_name_to_monitor.
            *("trainer.early_stopping_patience", "checkpoint.save.keep_best"),
            *("checkpoint.save.metric_mode", "checkpoint.save.keep_checkpoints_without_metrics"),
        }
    ),
    "Evaluate": frozenset({"metric_mode", "metric_name_to_monitor", "hang_seconds"}),
    "Infer": frozenset({"step", "hang_seconds"}),  # mtf uses `step` to open the checkpoint.
}


class Refusal(NamedTuple):
    """A setting for which T5X supports only certain values.

    Attributes:
      path: the path of the setting.
      is_expressible: a function that returns whether T5X supports a value, given the whole config.
      reason: the reason why T5X does not support other values, and what to do instead.
    """

    path: str
    is_expressible: Callable[[Any, fdl.Config], bool]
    reason: str


def _periods_fit(period: int | None, config: fdl.Config) -> bool:
    """Returns whether the saving period is a multiple of the evaluation period, or vice versa.

    T5X requires this because it trains in rounds that are as long as the shorter period.
    """
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
    if "://" in path:  # Remote checkpoints are not opened, to save time.
        return format_of_prefix(path) is None
    try:
        return is_of_t5x(open_checkpoint(path))
    except ConversionError:
        return True  # The run itself reports this error later.


def is_of_t5x(checkpoint: Checkpoint) -> bool:
    """Returns whether T5X's unrolled network can start from a checkpoint."""
    return format_of(checkpoint).of_t5x and not checkpoint.is_scanned


_FSDP = (
    "T5X's mesh has no axis fsdp. To also shard parameters over the data axis, set "
    "partitioner.fsdp=1 and partitioner.logical_axis_rules to FULLY_SHARDED_AXIS_RULES."
)
OF_T5X = (
    "T5X can start only from checkpoints of mtf or of T5X's unrolled network. Convert Hugging Face "
    "directories and checkpoints of Mesh TensorFlow or of T5X's scanned network with "
    "`python -m mtf.convert CHECKPOINT OUT_DIR --to t5x`"
)
_DECODING = (
    "T5X always decodes up to task_feature_lengths['targets'] tokens and supports only "
    "length_penalty_form='t5x', num_return=1 and seed=0."
)
_S3 = "T5X writes with TensorFlow, which cannot write to s3://; expected a local path or gs://."


def _only(path: str, value: Any, reason: str) -> Refusal:
    """Returns a `Refusal` for all values of a setting except `value`."""
    return Refusal(path, lambda given, _: given == value, reason)


_OF_JOBS = (
    _only("partitioner.fsdp", 1, _FSDP),
    Refusal("decoding", _is_decoding_of_t5x, _DECODING),
    Refusal("output_dir", _is_writable, _S3),
)
REFUSALS: Mapping[str, tuple[Refusal, ...]] = {
    "Train": (
        Refusal("model_dir", _is_writable, _S3),
        _only(
            "model.network.relative_attention_num_buckets",
            32,
            "T5X's network always has 32 buckets.",
        ),
        _only(
            "model.network.relpos_bias_per_layer",
            False,
            "In T5X's unrolled network, the layers of a stack share a relative position bias.",
        ),
        _only(
            "model.network.relative_attention_max_distance",
            128,
            "T5X's network always has a maximum distance of 128.",
        ),
        Refusal(
            "model.network.attention",
            lambda value, _: value != "pallas",
            "T5X computes attention with XLA. Use 'auto' or 'xla'.",
        ),
        _only("model.network.lora", None, "T5X's network does not support adapters."),
        _only("trainer.ema", None, "T5X does not keep an average of the parameters."),
        Refusal(
            "trainer.frozen",
            lambda patterns, _: not patterns,
            "T5X's Adafactor always trains all parameters.",
        ),
        _only("trainer.profile", None, "mtf traces the steps of its own training loop."),
        Refusal(
            "trackers",
            lambda trackers, _: not trackers,
            "T5X's training loop writes only to TensorBoard.",
        ),
        _only(
            "trainer.skip_nonfinite_updates",
            False,
            "T5X's Adafactor can skip NaN values in single parameters, but not complete updates.",
        ),
        Refusal(
            "trainer.eval_period",
            lambda period, config: (
                period is None or config.evaluator is None or period == config.evaluator.period
            ),
            "T5X uses one period for both evaluations; set it to the value of evaluator.period.",
        ),
        _only("partitioner.fsdp", 1, _FSDP),
        Refusal(
            "checkpoint.save.period",
            _periods_fit,
            "T5X requires this period to be a multiple of the evaluation period, or vice versa.",
        ),
        _only(
            "checkpoint.save.dtype",
            "float32",
            "T5X ignores this dtype and always saves Orbax checkpoints in float32.",
        ),
        _only(
            "checkpoint.save.metric_name_to_monitor",
            None,
            "When T5X keeps the best checkpoint, it deletes the latest, so the run could not be "
            "resumed.",
        ),
        Refusal("checkpoint.restore.path", _is_readable, f"{OF_T5X}."),
        Refusal("evaluator.decoding", _is_decoding_of_t5x, _DECODING),
    ),
    "Evaluate": (
        _only(
            "checkpoint_steps",
            None,
            "T5X does not find the best step; evaluate one checkpoint at a time.",
        ),
        *_OF_JOBS,
    ),
    "Infer": _OF_JOBS,
}


def type_name(component: Any) -> str:
    """Returns the name of a component's class."""
    return fdl.get_callable(component).__name__


def get(config: fdl.Config, path: str) -> Any:
    """Returns the value at a path, or None if a component on the path is None."""
    value: Any = config
    for field in path.split("."):
        if value is None:
            return None
        value = getattr(value, field)
    return value


def find_custom_parts(config: fdl.Config) -> Iterator[str]:
    """Yields a message for each custom component of a job (see docs/extending.md)."""
    if type_name(config) != "Train":
        return
    if config.model.loss_fn is not None:
        yield "model.loss_fn is set, but T5X always computes its own cross-entropy."
    if _is_config_of(config.data, "CustomDataConfig"):
        yield "data = @CustomDataConfig: mtf cannot pass custom data to T5X."
    optimizer = config.optimizer
    if type_name(optimizer) != "AdafactorConfig":
        yield (
            f"optimizer = @{type_name(optimizer)}: with T5X, mtf supports only AdafactorConfig, "
            "because T5X stores the state of optax's optimizers in a different layout."
        )
    elif not _is_config_of(optimizer.learning_rate, "ScheduleConfig"):
        yield (
            "optimizer.learning_rate is a function, but T5X's schedules are products of named "
            "factors. Expected a ScheduleConfig."
        )


def _is_config_of(value: Any, name: str) -> bool:
    return isinstance(value, fdl.Buildable) and type_name(value) == name


def find_refusals(config: fdl.Config) -> Iterator[str]:
    """Yields a message for each unsupported setting; in `config`, all defaults must be set."""
    for path, is_expressible, reason in REFUSALS[type_name(config)]:
        holder = get(config, path.rpartition(".")[0]) if "." in path else config
        if holder is None:
            continue
        value = get(config, path)
        if not is_expressible(value, config):
            shown = f"@{type_name(value)}" if isinstance(value, fdl.Buildable) else repr(value)
            yield f"{path} = {shown}: {reason}"


def notes(config: fdl.Config) -> Iterator[tuple[str, str]]:
    """Yields a (path, reason) pair for each setting that affects a job in mtf but not in T5X."""
    if type_name(config) != "Train":
        return
    config = tree.freeze_defaults(config)
    for path, (value, reason) in _IGNORED.items():
        if get(config, path) != value:
            yield path, reason
