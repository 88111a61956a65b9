"""Compares the logits of a Hugging Face model in PyTorch with those of a checkpoint in JAX.

Both frameworks run the whole network. Each layer reads its parameters when it runs and then
releases them, so memory use does not grow with the depth of the model.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from flax.traverse_util import unflatten_dict
from safetensors import safe_open

from conversion import huggingface, mapping
from conversion.huggingface_config import read_config
from conversion.huggingface_reader import stored_tensors
from conversion.mapping import EMBEDDING, LOGITS
from conversion.tensor import DTYPES, Tensor
from conversion.tokenizer_file import TokenizerFile
from mtf.data.text.vocabularies import (
    ByteVocabulary,
    SentencePieceVocabulary,
    TokenizerVocabulary,
    Vocabulary,
)
from mtf.inference.opening import network_config
from mtf.models import t5
from mtf.models.settings import T5Config

Array = np.ndarray[Any, Any]
_Stored = dict[str, tuple[tuple[int, ...], Callable[[], torch.Tensor]]]

# float32 rounding errors are proportional to the logits. In released models, they are about 2e-6
# times the largest logit.
_TOLERANCE, _RELATIVE_TOLERANCE = 1e-4, 2e-5
# Texts of various lengths and scripts; shorter rows are padded.
_TEXTS = (
    "Yes.",
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "Ninety-nine percent of the work is finding out which 1% matters; the rest is typing (mostly).",
    "Größe, naïveté, façade: l'été à Besançon coûte 25 € de plus qu'à Brașov și Țara Făgărașului.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "今日はとても良い天気ですね。 مرحبا بالعالم 👋🏽",
    "A much longer text follows. " * 12,
)
_RANDOM_LENGTHS = ((17, 9), (160, 144), (120, 144))  # (encoder length, decoder length)


class Tokens(NamedTuple):
    """Token ids (b, encoder length) and (b, decoder length), padded with 0."""

    encoder: Array
    decoder: Array


def compare(export: huggingface.Export, directory: Path) -> tuple[bool, str]:
    """Compares the Hugging Face model in `directory` with the checkpoint of an export.

    Returns (passed, report); the check passes if all logits agree within `tolerance` and both
    tokenizers return the same ids. Raises ConversionError if tensors are missing or unexpected.
    """
    transformers.utils.logging.set_verbosity_error()
    problem, text_ids = _compare_tokenizers(export, directory)
    tokens = sample_tokens(export.architecture.vocab_size, text_ids)
    config = network_config(
        export.architecture,
        relative_attention_max_distance=export.relative_attention_max_distance,
        dropout_rate=0.0,
        dtype="float32",
        scan_layers=False,
    )
    ours = our_logits(config, read_on_use(export), tokens)
    theirs = their_logits(open_torch(export, directory), tokens)
    deltas = [float(np.max(np.abs(a - b))) for a, b in zip(ours, theirs, strict=True)]
    largest = max(float(np.max(np.abs(row))) for row in ours)
    allowed = tolerance(largest)
    passed = problem is None and all(delta <= allowed for delta in deltas)
    on_random, on_text = np.split(deltas, [len(_RANDOM_LENGTHS)])
    real = "" if text_ids is None else f", {np.max(on_text):.2e} on real text"
    lines = [
        f"{'Verified' if passed else 'Compared'}: float32 logits, JAX against PyTorch: max |Δ| = "
        f"{np.max(on_random):.2e} on random tokens{real} "
        f"(largest |logit| {largest:.3g}, tolerance {allowed:.1e})"
    ]
    if problem is not None:
        lines.append(f"The tokenizers differ: {problem}")
    elif text_ids is not None:
        lines.append(f"Verified: both tokenizers return the same ids for {len(_TEXTS)} texts")
    if not passed:
        lines.append("VERIFICATION FAILED: nothing was written")
    return passed, "\n".join(lines)


def tolerance(largest: float) -> float:
    """Returns the largest allowed difference between logits of magnitude up to `largest`."""
    return max(_TOLERANCE, _RELATIVE_TOLERANCE * largest)


def sample_tokens(vocab_size: int, text_ids: list[list[int]] | None = None) -> Tokens:
    """Returns a batch with rows of random tokens, followed by a row for each text."""
    rng = np.random.default_rng(0)
    rows = [
        (rng.integers(1, vocab_size, encoder), [0, *rng.integers(1, vocab_size, decoder - 1)])
        for encoder, decoder in _RANDOM_LENGTHS
    ]
    if text_ids is not None:
        targets = text_ids[len(text_ids) // 2]
        rows += [(np.array(ids), [0, *targets[:-1]]) for ids in text_ids]
    encoder, decoder = (
        np.array([np.pad(row, (0, max(map(len, side)) - len(row))) for row in side])
        for side in zip(*rows, strict=True)
    )
    return Tokens(encoder, decoder)


class _ReadOnUse(dict[str, Any]):
    """A tree of parameters that reads each tensor, as float32, every time it is accessed."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if isinstance(value, Tensor):
            return jnp.asarray(value.read(), jnp.float32)
        return _ReadOnUse(value)


def read_on_use(export: huggingface.Export) -> t5.Params:
    """Returns parameters that are read on each access and rounded to the dtype of the export."""
    dtype = DTYPES[export.dtype]
    tensors = {name: x.cast(dtype) for name, x in export.checkpoint.parameters().items()}
    return _ReadOnUse(unflatten_dict(tensors, sep="/"))


def our_logits(config: T5Config, params: t5.Params, tokens: Tokens) -> Array:
    """Returns the float32 logits (b, decoder length, vocab) of mtf's network."""
    batch = {
        "encoder_input_tokens": jnp.asarray(tokens.encoder, jnp.int32),
        "decoder_input_tokens": jnp.asarray(tokens.decoder, jnp.int32),
        "decoder_target_tokens": jnp.ones(tokens.decoder.shape, jnp.int32),
    }
    # Use the CPU, because accelerators multiply float32 at a lower precision by default.
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("float32"):
        return np.asarray(t5.apply(config, params, batch))


def their_logits(model: Any, tokens: Tokens) -> Array:
    """Returns the float32 logits (b, decoder length, vocab) of a `transformers` model."""
    with torch.no_grad():
        logits = model(
            input_ids=torch.from_numpy(tokens.encoder),
            attention_mask=torch.from_numpy((tokens.encoder != 0).astype(np.int64)),
            decoder_input_ids=torch.from_numpy(tokens.decoder),
            use_cache=False,
        ).logits
    return np.asarray(logits.numpy())


def open_torch(export: huggingface.Export, directory: Path) -> Any:
    """Returns a directory's `transformers` model, whose layers load parameters when they run.

    While unused, parameters are on PyTorch's "meta" device, which allocates no memory. Raises
    ConversionError if the files lack tensors of the model or contain unexpected ones.
    """
    config = transformers.AutoConfig.from_pretrained(directory)
    with torch.device("meta"):
        model = getattr(transformers, export.class_name)(config).eval()
    stored = _stored_tensors(directory)
    _check_tensors(model, {name: shape for name, (shape, _) in stored.items()})
    ours = read_config(directory / "config.json")
    if ours.model_type == "umt5":  # transformers 5 always ties umT5 embeddings and scales logits.
        model.config.tie_word_embeddings = ours.scaled
    rounded = getattr(torch, export.dtype)

    def read(name: str) -> torch.Tensor:
        # The stacks' embeddings and the output projection are shared if not stored separately.
        _, tensor = stored[name if name in stored else EMBEDDING]
        return tensor().to(rounded).to(torch.float32, copy=True)

    def load(prefix: str, module: torch.nn.Module, _: object) -> None:
        names = module.state_dict()
        module.load_state_dict({name: read(f"{prefix}.{name}") for name in names}, assign=True)

    def unload(module: torch.nn.Module, _: object, __: object) -> None:
        module.to("meta")

    for name, module in model.named_modules():
        is_layer = re.fullmatch(r"\w+\.block\.\d+", name) is not None
        if is_layer or (".block." not in name and [*module.parameters(recurse=False)]):
            module.register_forward_pre_hook(functools.partial(load, name))
            module.register_forward_hook(unload)
    return model


def _stored_tensors(directory: Path) -> _Stored:
    """Returns a dict mapping tensor names to (shape, function that reads the tensor) pairs."""

    def read(path: Path, name: str) -> torch.Tensor:
        # If the file stayed open, the tensors that were read from it would stay in memory.
        with safe_open(path, "pt") as file:
            return file.get_tensor(name)

    found: _Stored = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - `file` is not a dict
                shape = tuple(file.get_slice(name).get_shape())
                found[name] = (shape, functools.partial(read, path, name))
    if not found:  # `pytorch_model.bin`, or `flax_model.msgpack`, which PyTorch cannot read
        for name, tensor in stored_tensors(directory).items():
            found[name] = (tensor.shape, functools.partial(_to_torch, tensor))
    return found


def _to_torch(tensor: Tensor) -> torch.Tensor:
    return torch.from_numpy(tensor.read().astype(np.float32))


def _check_tensors(model: Any, found: dict[str, tuple[int, ...]]) -> None:
    """Raises ConversionError unless the names and shapes in `found` match those of a model."""
    known = {name: tuple(x.shape) for name, x in model.state_dict().items()}
    needed = {name for name, _ in model.named_parameters()} - {LOGITS}
    ignored = re.compile("|".join(model._keys_to_ignore_on_load_unexpected or ["(?!)"]))
    mapping.check_shapes(
        {name: x for name, x in found.items() if name in known or not ignored.search(name)},
        {name: x for name, x in known.items() if name in found or name in needed},
        "the model has",
        f"transformers {transformers.__version__} cannot load the exported model. Nothing was "
        "written. Try another version of transformers, or pass --no-verify",
    )


def _compare_tokenizers(
    export: huggingface.Export, directory: Path
) -> tuple[str | None, list[list[int]] | None]:
    """Returns the first difference (or None) and mtf's ids for the texts (None: no tokenizer)."""
    written = export.tokenizer
    if written is None:
        return None, None
    extra_ids = written.extra_ids
    vocabulary: Vocabulary = ByteVocabulary(extra_ids)
    if isinstance(written, TokenizerFile):
        vocabulary = TokenizerVocabulary(str(written.path), written.bos_token, written.eos_token)
    elif written.model is not None:
        vocabulary = SentencePieceVocabulary(str(written.model.path), extra_ids)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    eos = [vocabulary.eos_id] * export.inputs_add_eos
    text_ids = [[*vocabulary.encode(text), *eos] for text in _TEXTS]
    pairs: list[tuple[str, Any, Any]] = [
        (repr(text), ids, theirs(text).input_ids)
        for text, ids in zip(_TEXTS, text_ids, strict=True)
    ]
    if extra_ids:
        found = theirs.convert_tokens_to_ids("<extra_id_0>")
        pairs.append(("<extra_id_0>", vocabulary.sentinel(0), found))
    differ = (f"{a} becomes {b} in mtf and {c} in transformers" for a, b, c in pairs if b != c)
    return next(differ, None), text_ids
