"""Compares the logits of an exported model in PyTorch with those of its checkpoint in JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from conversion import huggingface
from conversion.tensor import DTYPES
from mtf.errors import UserError
from mtf.inference.opening import network_config
from mtf.models import t5
from mtf.models.settings import T5Config
from mtf.text.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary

TOLERANCE = 1e-4

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


def compare(export: huggingface.Export, directory: Path) -> tuple[bool, str]:
    """Compares the model in `directory` with its checkpoint.

    Returns whether all logits agree within TOLERANCE and the tokenizers give the same ids; and a
    report. Raises a UserError if `transformers` does not find exactly the tensors that it expects.
    """
    with _quiet():
        model = _load_torch(export, directory)
        problem, text_ids = _compare_tokenizers(export, directory)
    config, params = load_network(export)
    sizes = export.architecture
    batches = random_batches(sizes.vocab_size)
    if text_ids is not None:
        batches.append(_text_batch(text_ids))
    deltas, largest = [], []
    for batch in batches:
        ours, theirs = our_logits(config, params, *batch), torch_logits(model, *batch)
        deltas.append(largest_difference(ours, theirs))
        largest.append(float(np.max(np.abs(ours))))
    passed = problem is None and all(delta <= TOLERANCE for delta in deltas)
    real = "" if text_ids is None else f", {deltas[-1]:.2e} on real text"
    lines = [
        f"{'Verified' if passed else 'Compared'}: float32 logits, JAX against PyTorch: max |Δ| = "
        f"{np.max(deltas[: len(_RANDOM_SHAPES)]):.2e} on random tokens{real} "
        f"(largest |logit| {max(largest):.3g}, tolerance {TOLERANCE:.0e})"
    ]
    if problem is not None:
        lines.append(f"The tokenizers differ: {problem}")
    elif text_ids is not None:
        lines.append(f"Verified: both tokenizers return the same ids for {len(_TEXTS)} texts")
    if not passed:
        lines.append("VERIFICATION FAILED: nothing was written")
    return passed, "\n".join(lines)


def random_batches(vocab_size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns batches of encoder and decoder tokens."""
    rng = np.random.default_rng(0)
    return [_random_batch(rng, vocab_size, *shape) for shape in _RANDOM_SHAPES]


def _random_batch(
    rng: np.random.Generator, vocab_size: int, batch: int, encoder: int, decoder: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns encoder tokens, whose rows end with more and more padding; and decoder tokens."""
    encoder_tokens = rng.integers(1, vocab_size, (batch, encoder))
    for row in range(batch):
        encoder_tokens[row, encoder - row * encoder // (2 * batch) :] = 0
    decoder_tokens = rng.integers(1, vocab_size, (batch, decoder))
    decoder_tokens[:, 0] = 0  # what generation starts from
    return encoder_tokens, decoder_tokens


def _text_batch(text_ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    length = max(map(len, text_ids))
    encoder_tokens = np.array([ids + [0] * (length - len(ids)) for ids in text_ids])
    targets = text_ids[len(text_ids) // 2]
    decoder_tokens = np.tile([0, *targets[:-1]], (len(text_ids), 1))
    return encoder_tokens, decoder_tokens


def load_network(export: huggingface.Export) -> tuple[T5Config, t5.Params]:
    """Returns mtf's network of the checkpoint, its parameters rounded to the export's dtype."""
    config = network_config(
        export.architecture,
        relative_attention_max_distance=export.relative_attention_max_distance,
        dropout_rate=0.0,
        dtype="float32",
        scan_layers=False,
    )
    written = DTYPES[export.dtype]
    params = {
        name: tensor.read().astype(written).astype(np.float32)
        for name, tensor in export.checkpoint.parameters().items()
    }
    return config, unflatten_dict(params, sep="/")


def largest_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns max |Δ|, which must be at most TOLERANCE; NaN if there is any NaN."""
    return float(np.max(np.abs(ours - theirs)))


_apply = jax.jit(t5.apply, static_argnums=0)


def our_logits(
    config: T5Config, params: t5.Params, encoder_tokens: np.ndarray, decoder_tokens: np.ndarray
) -> np.ndarray:
    """Returns the float32 logits (b, decoder length, vocab) of mtf's network."""
    # On the CPU in full float32: accelerators multiply at lower precision by default.
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("float32"):
        batch = {
            "encoder_input_tokens": jnp.asarray(encoder_tokens, jnp.int32),
            "decoder_input_tokens": jnp.asarray(decoder_tokens, jnp.int32),
            "decoder_target_tokens": jnp.ones(decoder_tokens.shape, jnp.int32),
        }
        return np.asarray(_apply(config, params, batch))


def _load_torch(export: huggingface.Export, directory: Path) -> Any:
    import transformers

    model_class = getattr(transformers, export.class_name)
    model, info = model_class.from_pretrained(directory, output_loading_info=True)
    names = {"missing tensors": "missing", "unexpected": "unexpected", "wrong shape": "mismatched"}
    problems = [
        f"{problem}: {', '.join(map(str, sorted(found)[:3]))}{', …' if len(found) > 3 else ''}"
        for problem, kind in names.items()
        if (found := info[f"{kind}_keys"])
    ]
    if problems:
        raise UserError(
            f"transformers {transformers.__version__} cannot load the exported model: "
            f"{'; '.join(problems)}. Nothing was written. Try another version of transformers, or "
            "leave out --verify."
        )
    if export.model_type == "umt5":  # transformers 5 always sets it, which scales the logits.
        model.config.tie_word_embeddings = export.architecture.logits_via_embedding
    return model.float().eval()


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
