"""Reads a Hugging Face model (T5, mT5, umT5 or ByT5) as a checkpoint with T5X's names.

As in `transformers` 5, the output projection is `lm_head.weight`, or the embedding if this tensor
is missing, regardless of `tie_word_embeddings`. The logits of T5 are scaled by d_model**-0.5 unless
`scale_decoder_outputs` is false; its default is the value of `tie_word_embeddings`. The logits of
mT5 are never scaled. umT5 is treated like T5, as in `transformers` 4. (Version 5 always scales the
logits of umT5, although `tie_word_embeddings` is false for the published models.)
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
from collections.abc import Callable, Collection

import numpy as np

from conversion import mapping
from conversion.blocks import row_blocks
from conversion.checksums import CHECKSUMS
from conversion.families import Architecture
from conversion.flax_msgpack import open_flax, pytorch_name
from conversion.huggingface_config import read_config
from conversion.json_file import read_json
from conversion.mapping import EMBEDDING, LOGITS
from conversion.pytorch_file import open_pytorch
from conversion.safetensors_file import open_tensors
from conversion.tensor import Checkpoint, ConversionError, IncompleteCheckpoint, Tensor
from conversion.tokenizer import TOKENIZER_FILES
from mtf.storage import AnyPath, is_listable

_OTHERS = ("tf_model.h5", "flax_model.msgpack", "flax_model.msgpack.index.json")
_SMALL_FILES = ("config.json", "generation_config.json", CHECKSUMS, *TOKENIZER_FILES)
_EMBEDDINGS = (EMBEDDING, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# The first T5 checkpoints contain this bias, which the network does not use.
_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

_INDEX = ".index.json"
# Weight file → function that opens it, in order of preference. If a model has several weight files,
# FILE.index.json lists them.
_OPENERS: dict[str, Callable[[AnyPath], dict[str, Tensor]]] = {
    "model.safetensors": open_tensors,
    "pytorch_model.bin": open_pytorch,
    "flax_model.msgpack": open_flax,
}


def _weights(exists: Callable[[str], object]) -> str | None:
    """Returns the name of the weight file or, for several, their index; None if there is none."""
    names = (name for file in _OPENERS for name in (f"{file}{_INDEX}", file))
    return next((name for name in names if exists(name)), None)


def is_huggingface(directory: AnyPath) -> bool:
    """Returns whether a directory contains weights in one of Hugging Face's formats."""
    if not is_listable(directory):
        return _weights(lambda name: (directory / name).is_file()) is not None
    patterns = ("*.safetensors", "pytorch_model*.bin*", *_OTHERS)
    return any(any(directory.glob(pattern)) for pattern in patterns)


def needed_files(names: Collection[str]) -> list[str]:
    """Filters the names of the files in a Hugging Face directory; keeps those that mtf reads.

    Raises ConversionError if there are no weights in a known format.
    """
    weights = _weights(names.__contains__)
    if weights is None:
        raise ConversionError(
            f"it has no weights; expected one of {', '.join(_OPENERS)}, but it has "
            f"{', '.join(sorted(names)[:8])}"
        )
    stem, _, suffix = weights.removesuffix(_INDEX).rpartition(".")
    shards = fnmatch.filter(names, f"{stem}-*.{suffix}") if weights.endswith(_INDEX) else []
    return [name for name in (*_SMALL_FILES, weights, *shards) if name in names]


def known_files(directory: AnyPath) -> list[str]:
    """Returns the names of the files to read from a directory that cannot be listed."""
    names = [name for name in _SMALL_FILES if (directory / name).is_file()]
    weights = _weights(lambda name: (directory / name).is_file())
    if weights and weights.endswith(_INDEX):
        return [*names, weights, *dict.fromkeys(_weight_map(directory, weights).values())]
    return [*names, weights] if weights else names


def open_huggingface(directory: AnyPath, step: None = None) -> Checkpoint:
    """Opens a Hugging Face directory without reading tensors, except duplicates of the embedding.

    Raises:
      ConversionError: the directory contains an unsupported model or no weights in a known format,
        or the tensors do not match config.json.
      IncompleteCheckpoint: a file is missing or truncated.
    """
    config = read_config(directory / "config.json")
    tensors = _tensors(config.architecture, config.scaled, stored_tensors(directory), directory)
    return Checkpoint(directory, "huggingface", step, tensors, config.described)


def stored_tensors(directory: AnyPath) -> dict[str, Tensor]:
    """Returns a dict mapping PyTorch's names to all tensors in a directory, in PyTorch's layout."""
    if weights := _weights(lambda name: (directory / name).is_file()):
        opener = _OPENERS[weights.removesuffix(_INDEX)]
        is_index = weights.endswith(_INDEX)
        return _sharded(directory, weights, opener) if is_index else opener(directory / weights)
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    found = f" It has {', '.join(others[:3])}." if others else ""
    raise ConversionError(
        f"{directory} has no weights; expected one of {', '.join(_OPENERS)}.{found} To convert "
        "another format, run transformers.AutoModelForSeq2SeqLM.from_pretrained(DIR)"
        ".save_pretrained(OUT) in Python."
    )


def _sharded(
    directory: AnyPath, index: str, opener: Callable[[AnyPath], dict[str, Tensor]]
) -> dict[str, Tensor]:
    file_of = _weight_map(directory, index)
    files = {file: opener(directory / file) for file in sorted(set(file_of.values()))}
    for name, file in file_of.items():
        if file.endswith(".msgpack"):
            name = pytorch_name(name)
        if name not in files[file]:
            raise IncompleteCheckpoint(
                f"{directory}: {file} does not contain {name}, contrary to {index}."
            )
    return dict(itertools.chain.from_iterable(tensors.items() for tensors in files.values()))


def _weight_map(directory: AnyPath, index: str) -> dict[str, str]:
    """Returns a dict mapping the name of each tensor to the name of the file that contains it."""
    found = read_json(directory / index).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(x, str) for x in found.values()):
        raise ConversionError(f"{directory / index}: weight_map must map tensor names to files.")
    return found


def _tensors(
    architecture: Architecture, scaled: bool, stored: dict[str, Tensor], directory: AnyPath
) -> dict[str, Tensor]:
    """Returns a dict mapping T5X's names to the tensors, in T5X's layout."""
    embedding = next((stored[name] for name in _EMBEDDINGS if name in stored), None)
    if embedding is None:
        shown = sorted(stored)[:3]
        raise ConversionError(
            f"{directory} has no tensor {EMBEDDING}. It has {', '.join(shown) or 'no tensors'}"
            f"{', …' if len(stored) > 3 else ''}."
        )
    head = stored.get(LOGITS)
    if scaled and head is not None and _equal(head, embedding):
        head = None  # Older versions of transformers also wrote the tied projection.
    tied = scaled and head is None
    entries = mapping.entries(dataclasses.replace(architecture, logits_via_embedding=tied))
    sources = {name: tensor for name, tensor in stored.items() if name != _UNUSED}
    for name in _EMBEDDINGS[1:]:
        if not _equal(sources.pop(name, embedding), embedding):
            raise ConversionError(
                f"{directory}: the tensors {name} and {EMBEDDING} differ, but they must be equal."
            )
    sources[EMBEDDING] = embedding
    if tied:
        sources.pop(LOGITS, None)
    else:
        # An mT5 model without a projection uses the embedding instead, and does not scale logits.
        sources[LOGITS] = embedding if head is None else head
    mapping.check_shapes(
        {name: tensor.shape for name, tensor in sources.items()},
        {entry.hf: entry.hf_shape for entry in entries},
        "config.json implies",
        f"The tensors of {directory} do not match its config.json",
    )
    if scaled and not tied:  # T5X scales logits only if the projection is tied.
        factor = np.float32(architecture.emb_dim**-0.5)
        sources[LOGITS] = sources[LOGITS].mapped(lambda x: x.astype(np.float32) * factor, "float32")
    names = {f"target/{entry.t5x}": entry for entry in entries}
    return {
        name: sources[entry.hf].view(name, transposed=entry.transposed)
        for name, entry in names.items()
    }


def _equal(a: Tensor, b: Tensor) -> bool:
    if a is b or a.shape != b.shape or len(a.shape) != 2:
        return a is b
    return all(np.array_equal(a.read((rows,)), b.read((rows,))) for rows in row_blocks(a))
