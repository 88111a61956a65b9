"""Converts mtf's settings to values for T5X. Importing this module does not import T5X.

Each function takes values from a job's config, in which all defaults are set, and returns the
corresponding value for T5X, which may be a config.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl

from mtf.checkpoints.steps import CHECKPOINTS
from mtf.partitioning.settings import FULLY_SHARDED_AXIS_RULES, LOGICAL_AXIS_RULES, Rules, mesh_axes
from mtf.storage import AnyPath, as_path

Renaming = Sequence[tuple[str, str | None]]


def symbol(name: str) -> Any:
    """Imports and returns the function or class to which a dotted name refers."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def loss_normalizing_factor(
    factor: float | str | None,
    num_microbatches: int,
    batch_size: int,
    lengths: Mapping[str, int],
) -> float | str | None:
    """Returns the value by which T5X divides the loss.

    T5X normalizes the loss of each microbatch by the number of tokens in the microbatch. With
    several microbatches, NUM_TOTAL_TARGET_TOKENS is therefore replaced by the number of target
    tokens in a batch, including padding. This number is the same for all batches.
    """
    if factor == "NUM_TOTAL_TARGET_TOKENS" and num_microbatches > 1:
        return float(batch_size * lengths["targets"])
    return factor


def trainer(factor: float | str | None, num_microbatches: int) -> str:
    """Returns the name of T5X's trainer, or of mtf's if T5X's loss would depend on microbatches.

    T5X's trainer normalizes the loss of each microbatch separately. Its loss depends on the
    microbatches if the normalizing factor depends on the tokens in a microbatch.
    """
    depends = factor in ("NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE")
    ours = depends and num_microbatches > 1
    return "mtf.t5x.microbatches.Trainer" if ours else "t5x.trainer.Trainer"


def logical_axis_rules(rules: Rules) -> Any:
    """Returns T5X's standard rules if they equal `rules`, else `rules` without the axis "fsdp"."""
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
    """Returns the name of the mixture, task or streamed dataset; for text files, "text_files"."""
    for field in ("mixture_or_task_name", "dataset"):
        if hasattr(data, field):
            return getattr(data, field)
    return "text_files"


def eval_split(data: fdl.Config) -> str:
    """Returns the split to evaluate: "validation" by default and for text files."""
    return getattr(data, "eval_split", None) or "validation"


def restore_path(path: str, mode: str) -> str:
    """Returns `path`, or the path of its checkpoint folder if `path` is an mtf run directory."""
    inside = as_path(path) / CHECKPOINTS
    return absolute_path(inside if mode != "specific" and inside.is_dir() else path)


def absolute_path(path: AnyPath | str) -> str:
    """Returns `path` as an absolute path, which T5X requires. Remote paths do not change."""
    return str(as_path(path).absolute())


def assignment_map(
    rules: Renaming, fallback_to_scratch: bool
) -> list[tuple[str, str | None]] | None:
    """Returns the rules for T5X, or None if T5X needs no rules.

    T5X initializes missing tensors only if there are rules. If `fallback_to_scratch` is set but
    `rules` is empty, this function therefore returns a rule that has no effect.
    """
    if fallback_to_scratch and not rules:
        return [("state/step", "state/step")]
    return list(rules) or None


def fallback_to_scratch(rules: Renaming, fallback_to_scratch: bool) -> bool:
    """Returns whether T5X must initialize tensors: all missing ones, or those that rules drop.

    T5X does not distinguish the two; `python -m mtf.run` first checks that no others are missing.
    """
    return fallback_to_scratch or any(replacement is None for _, replacement in rules)


def decode_fn(decoding: fdl.Config | None) -> Any:
    """Returns the decoding function; if `decoding` is None, this is T5X's default, beam search."""
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
    """Returns a config with the number of beams, or None for T5X's default of one beam."""
    if decoding is None or decoding.method != "beam" or decoding.num_beams == 1:
        return None
    return fdl.Config(symbol("t5x.models.DecoderParams"), num_decodes=decoding.num_beams)
