"""Translates the objectives of Mesh TensorFlow's T5 (`objectives/*.gin`).

Its unsupervised tasks have the preprocessing that gin binds to `unsupervised.preprocessors`.
Source: t5/data/preprocessors.py of T5.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from mtf.data import BertStyle, IidDenoising, PrefixLM, SpanCorruption
from mtf.errors import UserError
from mtf.gin.expressions import ConfigOf
from mtf.gin.reading import Bindings, Reference
from mtf.gin.walking import Walk
from mtf.tasks.objectives import span_corruption_lengths

# The tasks that are streamed from the Hugging Face hub with the objective that gin binds.
TASKS = ("c4_v220_unsupervised",)
_LENGTH = "random_spans_targets_length"
_SENTINELS = ("noise_span_to_unique_sentinel", "nonnoise_span_to_unique_sentinel")
# Preprocessors, `denoise.noise_mask_fn`, `inputs_fn` and `targets_fn` → the objective.
_OBJECTIVES: dict[tuple[Any, ...], type] = {
    ("split_tokens", "random_spans_noise_mask", *_SENTINELS): SpanCorruption,
    ("split_tokens_to_inputs_length", "iid_noise_mask", *_SENTINELS): IidDenoising,
    **{
        ("split_tokens_to_inputs_length", "iid_noise_mask", inputs, None): BertStyle
        for inputs in ("noise_token_to_sentinel", "noise_token_to_random_token_or_sentinel")
    },
    (
        *("split_tokens_to_inputs_length", "random_prefix_noise_mask"),
        *("drop_nonnoise_tokens", "drop_noise_tokens"),
    ): PrefixLM,
}


def set_targets_length(bindings: Bindings) -> None:
    """Computes the macros that `random_spans_targets_length()` defines, as T5 does."""
    for name, binding in bindings.macros.items():
        value = binding.value
        if not (isinstance(value, Reference) and value.configurable == _LENGTH):
            continue
        walk = Walk(bindings, {})
        found = {
            parameter: walk.resolve(each.value, each)
            for parameter, each in bindings.of("random_spans_helper", value.scope).items()
        }
        wanted = ("inputs_length", "noise_density", "mean_noise_span_length")
        if all(isinstance(found.get(parameter), int | float) for parameter in wanted):
            _, length = span_corruption_lengths(*(found[parameter] for parameter in wanted))
            bindings.macros[name] = dataclasses.replace(binding, value=length)


def objective(walk: Walk) -> ConfigOf:
    """Returns the objective that `unsupervised.preprocessors` describe; UserError if none does."""
    binding = walk.bindings.of("unsupervised").get("preprocessors")
    given = None if binding is None else walk.resolve(binding.value, binding)
    if binding is None or not isinstance(given, list | tuple):
        raise UserError(
            "The task has no objective: unsupervised.preprocessors is not bound. Add one, such as "
            "--gin_file=objectives/span_3_15_u_u.gin."
        )
    steps = [each.configurable for each in given if isinstance(each, Reference)]
    concatenates = "reduce_concat_tokens" in steps
    values = _parameters(walk, "denoise")
    rest = [step for step in steps if step not in ("select_random_chunk", "reduce_concat_tokens")]
    key = (
        rest[0] if rest[1:] == ["denoise"] else None,
        *(_name(values.get(name)) for name in ("noise_mask_fn", "inputs_fn", "targets_fn")),
    )
    target = _OBJECTIVES.get(key)
    if target is None or concatenates == (target is PrefixLM):
        raise UserError(
            f"{binding} ({binding.where}): mtf has no equivalent of this objective; it has span "
            "corruption, i.i.d. and BERT-style denoising, and prefix language modeling."
        )
    chunk = _parameters(walk, "select_random_chunk").get("max_length")
    settings: dict[str, Any] = {} if chunk is None else {"max_document_tokens": chunk}
    if target is not PrefixLM:
        settings["noise_density"] = values.get("noise_density", 0.15)
    if target is SpanCorruption:
        spans = _parameters(walk, "random_spans_noise_mask")
        settings["mean_noise_span_length"] = spans.get("mean_noise_span_length", 3.0)
    if target is BertStyle:
        replaced = _parameters(walk, "noise_token_to_random_token_or_sentinel")
        at_random = key[2] == "noise_token_to_random_token_or_sentinel"
        settings["random_token_rate"] = replaced.get("random_prob", 0.1) if at_random else 0.0
    defaults = {field.name: field.default for field in dataclasses.fields(target)}
    return ConfigOf(target, {n: v for n, v in settings.items() if v != defaults[n]})


def needed_targets(objective: ConfigOf, inputs: int) -> int:
    """Returns how long targets must be so that none are truncated; 1 for prefix LM."""
    if objective.target is PrefixLM:
        return 1
    lengths = {"inputs": inputs, "targets": 1_000_000}
    needed: int = objective.target(**objective.keywords).segment_lengths(lengths, True)[1]
    return needed


def _parameters(walk: Walk, configurable: str) -> dict[str, Any]:
    bound = walk.bindings.of(configurable)
    return {name: walk.resolve(binding.value, binding) for name, binding in bound.items()}


def _name(value: Any) -> Any:
    return value.configurable if isinstance(value, Reference) else value
