"""Compares the logits of an exported model in PyTorch with those of its checkpoint in JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from conversion import Checkpoint, huggingface, open_checkpoint
from conversion.huggingface_config import read_config
from conversion.tensor import DTYPES
from mtf.host_memory import available_bytes, gib
from mtf.logits_by_layer import (
    Part,
    Tokens,
    exact,
    logits,
    network,
    refuse_tensors,
    set_scaling,
)
from mtf.models import t5
from mtf.models.settings import T5Config
from mtf.text.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary

# Rounding errors of float32 grow with the logits: differences of the published depths are 2e-6 of
# the largest logit.
_TOLERANCE, _RELATIVE_TOLERANCE = 1e-4, 2e-5
# Measured: 12.4, of which transformers, mtf and JAX have 4 each.
_BYTES_PER_PARAMETER = 13

# Texts of several lengths and scripts; padding masks the ends of the shorter rows.
_TEXTS = (
    "Yes.",
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "Ninety-nine percent of the work is finding out which 1% matters; the rest is typing (mostly).",
    "Größe, naïveté, façade: l'été à Besançon coûte 25 € de plus qu'à Brașov și Țara Făgărașului.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "今日はとても良い天気ですね。 مرحبا بالعالم 👋🏽",
    "A much longer text follows. " * 12,
)
_RANDOM_SHAPES = ((3, 17, 9), (2, 160, 144))  # batch, encoder length, decoder length


def why_by_layer(export: huggingface.Export) -> str | None:
    """Returns why `compare` must run layer by layer; None if the model fits in the memory."""
    num_parameters = sum(math.prod(entry.shape) for entry in export.entries)
    needed = _BYTES_PER_PARAMETER * num_parameters
    available = available_bytes()
    if available is None or needed < available:
        return None
    return f"comparing the whole model needs {gib(needed)}, and {gib(available)} are available"


def of_import(source: Checkpoint, written: Path, dtype: str | None) -> huggingface.Export:
    """Returns what `compare` takes to compare a written checkpoint with its Hugging Face source."""
    return huggingface.Export(
        dataclasses.replace(open_checkpoint(written), described=source.described),
        model_type=read_config(source.path / "config.json").model_type,
        dtype=dtype or "float32",
        **source.described,
    )


def compare(
    export: huggingface.Export, directory: Path, *, by_layer: bool = False
) -> tuple[bool, str]:
    """Compares the model in `directory` with its checkpoint.

    With `by_layer`, the parameters of one layer are in memory at a time, or part of the vocabulary.

    Returns whether all logits agree within `tolerance` and the tokenizers give the same ids; and a
    report. Raises a UserError if `transformers` does not find exactly the tensors that it expects.
    """
    with _quiet():
        problem, text_ids = _compare_tokenizers(export, directory)
        batches = random_batches(export.architecture.vocab_size)
        if text_ids is not None:
            batches.append(_text_batch(text_ids))
        deltas, largest = np.zeros(len(batches)), 0.0
        for part in (logits if by_layer else _whole)(export, directory, batches):
            difference = largest_difference(part.ours, part.theirs)
            deltas[part.batch] = np.maximum(deltas[part.batch], difference)
            largest = max(largest, float(np.max(np.abs(part.ours))))
    allowed = tolerance(largest)
    passed = problem is None and all(delta <= allowed for delta in deltas)
    real = "" if text_ids is None else f", {deltas[-1]:.2e} on real text"
    lines = [
        f"{'Verified' if passed else 'Compared'}: float32 logits, JAX against PyTorch: max |Δ| = "
        f"{np.max(deltas[: len(_RANDOM_SHAPES)]):.2e} on random tokens{real} "
        f"(largest |logit| {largest:.3g}, tolerance {allowed:.1e})"
    ]
    if problem is not None:
        lines.append(f"The tokenizers differ: {problem}")
    elif text_ids is not None:
        lines.append(f"Verified: both tokenizers return the same ids for {len(_TEXTS)} texts")
    if not passed:
        lines.append("VERIFICATION FAILED: nothing was written")
    return passed, "\n".join(lines)


def _whole(
    export: huggingface.Export, directory: Path, batches: Sequence[Tokens]
) -> Iterator[Part]:
    """Yields the logits of each batch of both frameworks."""
    model = _load_torch(export, directory)
    config, params = load_network(export)
    for number, batch in enumerate(batches):
        ours = our_logits(config, params, *batch)
        yield Part(number, ours, torch_logits(model, *batch))


def random_batches(vocab_size: int) -> list[Tokens]:
    """Returns batches of encoder and decoder tokens."""
    rng = np.random.default_rng(0)
    return [_random_batch(rng, vocab_size, *shape) for shape in _RANDOM_SHAPES]


def _random_batch(
    rng: np.random.Generator, vocab_size: int, batch: int, encoder: int, decoder: int
) -> Tokens:
    """Returns encoder tokens, whose rows end with more and more padding; and decoder tokens."""
    encoder_tokens = rng.integers(1, vocab_size, (batch, encoder))
    for row in range(batch):
        encoder_tokens[row, encoder - row * encoder // (2 * batch) :] = 0
    decoder_tokens = rng.integers(1, vocab_size, (batch, decoder))
    decoder_tokens[:, 0] = 0  # what generation starts from
    return Tokens(encoder_tokens, decoder_tokens)


def _text_batch(text_ids: list[list[int]]) -> Tokens:
    length = max(map(len, text_ids))
    encoder_tokens = np.array([ids + [0] * (length - len(ids)) for ids in text_ids])
    targets = text_ids[len(text_ids) // 2]
    decoder_tokens = np.tile([0, *targets[:-1]], (len(text_ids), 1))
    return Tokens(encoder_tokens, decoder_tokens)


def load_network(export: huggingface.Export) -> tuple[T5Config, t5.Params]:
    """Returns mtf's network of the checkpoint, its parameters rounded to the export's dtype."""
    written = DTYPES[export.dtype]
    params = {
        name: tensor.read().astype(written).astype(np.float32)
        for name, tensor in export.checkpoint.parameters().items()
    }
    return network(export), unflatten_dict(params, sep="/")


def largest_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns max |Δ|; NaN if there is any NaN."""
    return float(np.max(np.abs(ours - theirs)))


def tolerance(largest: float) -> float:
    """Returns the largest difference of right logits, of which `largest` is the largest."""
    return max(_TOLERANCE, _RELATIVE_TOLERANCE * largest)


_apply = jax.jit(t5.apply, static_argnums=0)


def our_logits(
    config: T5Config, params: t5.Params, encoder_tokens: np.ndarray, decoder_tokens: np.ndarray
) -> np.ndarray:
    """Returns the float32 logits (b, decoder length, vocab) of mtf's network."""
    with exact():
        batch = {
            "encoder_input_tokens": jnp.asarray(encoder_tokens, jnp.int32),
            "decoder_input_tokens": jnp.asarray(decoder_tokens, jnp.int32),
            "decoder_target_tokens": jnp.ones(decoder_tokens.shape, jnp.int32),
        }
        return np.asarray(_apply(config, params, batch))


def _load_torch(export: huggingface.Export, directory: Path) -> Any:
    import torch
    import transformers

    model_class = getattr(transformers, export.class_name)
    model, info = model_class.from_pretrained(directory, output_loading_info=True)
    names = {"missing tensors": "missing", "unexpected": "unexpected", "wrong shape": "mismatched"}
    kinds = {problem: info[f"{kind}_keys"] for problem, kind in names.items()}
    refuse_tensors(transformers.__version__, kinds)
    set_scaling(model, directory)
    # A source of a conversion may have more digits than what was written.
    return model.to(getattr(torch, export.dtype)).float().eval()


def torch_logits(model: Any, encoder_tokens: np.ndarray, decoder_tokens: np.ndarray) -> np.ndarray:
    """Returns the float32 logits (b, decoder length, vocab) of a model of `transformers`."""
    import torch

    with torch.no_grad():
        logits = model(
            input_ids=torch.from_numpy(encoder_tokens),
            attention_mask=torch.from_numpy((encoder_tokens != 0).astype(np.int64)),
            decoder_input_ids=torch.from_numpy(decoder_tokens),
        ).logits
    return np.asarray(logits.numpy())


def _compare_tokenizers(
    export: huggingface.Export, directory: Path
) -> tuple[str | None, list[list[int]] | None]:
    """Returns the first difference, if any, and the ids of the texts; None without a tokenizer."""
    if export.tokenizer is None:
        return None, None
    from transformers import AutoTokenizer

    model, extra_ids = export.tokenizer.model, export.tokenizer.extra_ids
    vocabulary: Vocabulary = ByteVocabulary(extra_ids)
    if model is not None:
        vocabulary = SentencePieceVocabulary(str(model.path), extra_ids)
    theirs = AutoTokenizer.from_pretrained(directory)
    eos = [vocabulary.eos_id] * export.inputs_add_eos
    text_ids = [[*vocabulary.encode(text), *eos] for text in _TEXTS]
    pairs: list[tuple[str, Any, Any]] = [
        (repr(text), ids, theirs(text).input_ids)
        for text, ids in zip(_TEXTS, text_ids, strict=True)
    ]
    if extra_ids:
        sentinel = "<extra_id_0>"
        found = theirs.convert_tokens_to_ids(sentinel)
        pairs.append((sentinel, vocabulary.sentinel(0), found))
    differ = (f"{a} becomes {b} in mtf and {c} in transformers" for a, b, c in pairs if b != c)
    return next(differ, None), text_ids


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the warnings and progress bars of `transformers`."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
