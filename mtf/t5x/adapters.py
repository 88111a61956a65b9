"""Values that T5X spells or means differently. Nothing here imports T5X at module level.

A function takes the values at paths of a job's config, with defaults set, and returns T5X's value,
which may be a config.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl

from mtf.checkpoints.steps import CHECKPOINTS
from mtf.partitioning.settings import (
    FULLY_SHARDED_AXIS_RULES,
    LOGICAL_AXIS_RULES,
    Rules,
    mesh_axes,
)
from mtf.storage import AnyPath, as_path
from mtf.training.settings import LOGICAL_FACTOR_RULES

Renaming = Sequence[tuple[str, str | None]]


def symbol(name: str) -> Any:
    """Returns the function or class with a dotted name, from its module."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def list_or_none(values: Sequence[Any]) -> list[Any] | None:
    """Returns a list, or None if there are no values, which is T5X's default."""
    return list(values) or None


def logical_factor_rules(rules: Sequence[tuple[str, str]]) -> Any:
    """Returns T5X's standard rules if these are mtf's defaults, which are the same; else a dict."""
    if tuple(map(tuple, rules)) == LOGICAL_FACTOR_RULES:
        return fdl.Config(symbol("t5x.adafactor.standard_logical_factor_rules"))
    roles = symbol("t5x.adafactor.FactorDim")
    return {axis: roles[role] for axis, role in rules}


def loss_normalizing_factor(
    factor: float | str | None,
    num_microbatches: int,
    batch_size: int,
    lengths: Mapping[str, int],
) -> float | str | None:
    """Returns the divisor of the loss.

    T5X normalizes each microbatch by its own number of tokens. The total number of target tokens,
    including padding, is the same for all batches, so with microbatches it is lowered to a number.
    """
    if factor == "NUM_TOTAL_TARGET_TOKENS" and num_microbatches > 1:
        return float(batch_size * lengths["targets"])
    return factor


def loss_is_normalized_by(factor: float | str | None, num_microbatches: int) -> str:
    """Returns which trainer divides the loss by that of the whole batch: "batch" or "microbatch".

    T5X's own trainer does so unless the factor depends on the tokens of a microbatch.
    """
    depends = factor in ("NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE")
    return "batch" if depends and num_microbatches > 1 else "microbatch"


def num_microbatches(number: int) -> int | None:
    """Returns None for one microbatch, which T5X then trains without a loop."""
    return number if number > 1 else None


def num_partitions(number: int | None, submesh: Sequence[int] | None) -> int | None:
    """Returns 1 if neither setting is given; T5X requires one of them."""
    return 1 if number is None and submesh is None else number


def logical_axis_rules(rules: Rules) -> Any:
    """Returns T5X's standard rules where mtf's equal them; else the rules without the fsdp axis."""
    standard = symbol("t5x.partitioning.standard_logical_axis_rules")
    if rules == LOGICAL_AXIS_RULES:
        return fdl.Config(standard)
    if rules == FULLY_SHARDED_AXIS_RULES:
        dims = {"activation_partitioning_dims": 2, "parameter_partitioning_dims": 2}
        return fdl.Config(standard, **dims)
    return [(name, _without_fsdp(wanted)) for name, wanted in rules] + [
        ("stack", None),
        ("abspos_buckets", None),
        ("mlp_activations", None),
    ]


def _without_fsdp(wanted: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    axes = tuple(axis for axis in mesh_axes(wanted) if axis != "fsdp")
    return axes if len(axes) > 1 else next(iter(axes), None)


def data_name(data: fdl.Config) -> str:
    """Returns the name of the mixture or task, of the streamed dataset, or "text_files"."""
    for field in ("mixture_or_task_name", "dataset"):
        if hasattr(data, field):
            return getattr(data, field)
    return "text_files"


def use_cached(data: fdl.Config) -> bool:
    """Returns whether SeqIO's caches are read; False for data that are not SeqIO's."""
    return getattr(data, "use_cached", False)


def split(data: fdl.Config) -> str:
    """Returns the split to train on; text files have only one."""
    return getattr(data, "split", "train")


def eval_split(data: fdl.Config) -> str:
    """Returns the split to evaluate; the documents held out of text files are "validation"."""
    return getattr(data, "eval_split", None) or "validation"


def save_period(period: int | None, train_steps: int) -> int:
    """Returns the period; without one, T5X would not save the last step either."""
    return period or train_steps


def restore_path(path: str, mode: str) -> str:
    """Returns the path; of a run directory of mtf, the folder with its checkpoints."""
    inside = as_path(path) / CHECKPOINTS
    return absolute_path(inside if mode != "specific" and inside.is_dir() else path)


def absolute_path(path: AnyPath | str) -> str:
    """Returns the path, which T5X needs as an absolute path if it is on this machine."""
    return str(as_path(path).absolute())


def assignment_map(
    rules: Renaming, fallback_to_scratch: bool
) -> list[tuple[str, str | None]] | None:
    """Returns T5X's rules; None if there are none.

    T5X initializes missing tensors only if there are rules, so there is one that changes nothing.
    """
    if fallback_to_scratch and not rules:
        return [("state/step", "state/step")]
    return list(rules) or None


def fallback_to_scratch(rules: Renaming, fallback_to_scratch: bool) -> bool:
    """Returns whether T5X initializes missing tensors, which it also needs for dropped ones.

    `python -m mtf.run` checks before it starts T5X that no others are missing.
    """
    return fallback_to_scratch or any(replacement is None for _, replacement in rules)


def eval_period(period: int | None, evaluator: fdl.Config | None) -> int:
    """Returns the period of both evaluations; 0 if there is none."""
    return period or (evaluator.period if evaluator is not None else 0)


def decode_fn(decoding: fdl.Config | None) -> Any:
    """Returns the decoding function; T5X's default, beam search, for None."""
    beam_search = symbol("t5x.decoding.beam_search")
    if decoding is None:
        return beam_search
    if decoding.method == "beam":
        return fdl.Partial(beam_search, alpha=decoding.length_penalty)
    sample = symbol("t5x.decoding.temperature_sample")
    if decoding.method == "greedy":
        return fdl.Partial(sample, topk=1)
    # T5X samples from all tokens if both topk and topp are 0.
    topp = 0.0 if decoding.top_p == 1.0 else decoding.top_p
    return fdl.Partial(sample, temperature=decoding.temperature, topk=decoding.top_k, topp=topp)


def decoder_params(decoding: fdl.Config | None) -> Any:
    """Returns the number of beams, or None for T5X's default of one."""
    if decoding is None or decoding.method != "beam" or decoding.num_beams == 1:
        return None
    return fdl.Config(symbol("t5x.models.DecoderParams"), num_decodes=decoding.num_beams)


def loggers() -> list[Any]:
    """Returns SeqIO's loggers of T5X's gin files, except the one that prints."""
    return [symbol("seqio.TensorBoardLogger"), symbol("seqio.JSONLogger")]
