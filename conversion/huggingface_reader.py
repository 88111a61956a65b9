"""Reads a Hugging Face directory of T5, mT5, umT5 or ByT5 as a checkpoint with T5X's names.

As in `transformers` 5, the output projection is `lm_head.weight`, or the embedding if the file has
none, regardless of `tie_word_embeddings`. T5's logits are scaled by d_model**-0.5 unless
`scale_decoder_outputs` (by default `tie_word_embeddings`) is false; mT5's are never scaled. umT5's
are read like T5's, as in `transformers` 4: version 5 scales them even if `tie_word_embeddings` is
false, as in the published umT5.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from conversion import mapping
from conversion.architecture import Architecture
from conversion.flax_msgpack import open_flax, pytorch_name
from conversion.huggingface_config import read_config
from conversion.json_file import read_json
from conversion.mapping import EMBEDDING, LOGITS
from conversion.pytorch_file import open_pytorch
from conversion.safetensors_file import open_tensors
from conversion.tensor import (
    Checkpoint,
    ConversionError,
    IncompleteCheckpoint,
    Index,
    Tensor,
    row_blocks,
)
from conversion.tokenizer import TOKENIZER_FILES
from mtf.storage import AnyPath, StorePath

_OTHERS = ("tf_model.h5", "flax_model.msgpack", "flax_model.msgpack.index.json")
_SMALL_FILES = ("config.json", "generation_config.json", *TOKENIZER_FILES)
_EMBEDDINGS = (EMBEDDING, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# The first T5 checkpoints have this bias, which no version of the network uses.
_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

# Files with weights, from the preferred to the last one; `.index.json` is of several files.
_OPENERS: dict[str, Callable[[AnyPath], dict[str, Tensor]]] = {
    "model.safetensors": open_tensors,
    "pytorch_model.bin": open_pytorch,
    "flax_model.msgpack": open_flax,
}


def is_huggingface(directory: AnyPath) -> bool:
    """Returns whether a directory has weights in any of Hugging Face's formats."""
    if isinstance(directory, StorePath) and not directory.is_listable:
        names = [name for file in _OPENERS for name in (file, f"{file}.index.json")]
        return any((directory / name).is_file() for name in (*names, *_OTHERS))
    patterns = ("*.safetensors", "pytorch_model*.bin*", *_OTHERS)
    return any(any(directory.glob(pattern)) for pattern in patterns)


def needed_files(names: Collection[str]) -> list[str]:
    """Returns which files of a Hugging Face directory are read, of all its files.

    Raises ConversionError if there are no weights in a known format.
    """
    for file in _OPENERS:
        stem, _, suffix = file.rpartition(".")
        index = f"{file}.index.json"
        shards = [name for name in names if fnmatch.fnmatchcase(name, f"{stem}-*.{suffix}")]
        weights = [index, *shards] if index in names else [file]
        if weights[0] in names:
            return [name for name in (*_SMALL_FILES, *weights) if name in names]
    expected = ", ".join(_OPENERS)
    raise ConversionError(
        f"it has no weights; expected one of {expected}, but it has {', '.join(sorted(names)[:8])}"
    )


def known_files(directory: StorePath) -> list[str]:
    """Returns the files of a Hugging Face directory that mtf reads, where they cannot be listed."""
    names = [name for name in _SMALL_FILES if (directory / name).is_file()]
    for file in _OPENERS:
        index = f"{file}.index.json"
        if (directory / index).is_file():
            return [*names, index, *dict.fromkeys(_places(directory, index).values())]
        if (directory / file).is_file():
            return [*names, file]
    return names


def open_huggingface(directory: AnyPath) -> Checkpoint:
    """Opens a Hugging Face directory; reads only copies of the embedding, to compare them.

    Raises ConversionError if the directory has another kind of model or no safetensors, or its
    tensors do not match config.json; IncompleteCheckpoint if a file is missing or truncated.
    """
    config = read_config(directory / "config.json")
    tensors = _tensors(config.architecture, config.scaled, _stored(directory), directory)
    return Checkpoint(directory, "huggingface", None, tensors, config.described)


def _stored(directory: AnyPath) -> dict[str, Tensor]:
    """Returns all tensors of the directory's files, under PyTorch's names and in its layout."""
    for file, opener in _OPENERS.items():
        if (directory / f"{file}.index.json").is_file():
            return _sharded(directory, f"{file}.index.json", opener)
        if (directory / file).is_file():
            return opener(directory / file)
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    found = f" It has {', '.join(others[:3])}." if others else ""
    names = [name for file in _OPENERS for name in (file, f"{file}.index.json")]
    raise ConversionError(
        f"{directory} has no weights; expected one of {', '.join(names)}.{found} To convert "
        "another format, run transformers.AutoModelForSeq2SeqLM.from_pretrained(DIR)"
        ".save_pretrained(OUT) in Python."
    )


def _sharded(
    directory: AnyPath, index: str, opener: Callable[[AnyPath], dict[str, Tensor]]
) -> dict[str, Tensor]:
    places = _places(directory, index)
    files = {file: opener(directory / file) for file in sorted(set(places.values()))}
    for name, file in places.items():
        if file.endswith(".msgpack"):
            name = pytorch_name(name)
        if name not in files[file]:
            raise IncompleteCheckpoint(
                f"{directory}: {file} lacks {name}, although {index} lists it there."
            )
    return dict(itertools.chain.from_iterable(tensors.items() for tensors in files.values()))


def _places(directory: AnyPath, index: str) -> dict[str, str]:
    """Returns tensor name → file of a model in several files."""
    places = read_json(directory / index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
        raise ConversionError(f"{directory / index} has no weight_map, from tensor names to files.")
    return places


def _tensors(
    architecture: Architecture, scaled: bool, stored: dict[str, Tensor], directory: AnyPath
) -> dict[str, Tensor]:
    """Returns the tensors under T5X's names, in T5X's layout."""
    embedding = next((stored[name] for name in _EMBEDDINGS if name in stored), None)
    if embedding is None:
        shown = sorted(stored)[:3]
        raise ConversionError(
            f"{directory} has no tensor {EMBEDDING}. It has {', '.join(shown) or 'no tensors'}"
            f"{', …' if len(stored) > 3 else ''}."
        )
    head = stored.get(LOGITS)
    if scaled and head is not None and _equal(head, embedding):
        head = None  # Older versions wrote the tied projection, too.
    tied = scaled and head is None
    entries = mapping.entries(dataclasses.replace(architecture, logits_via_embedding=tied))
    sources = {name: tensor for name, tensor in stored.items() if name != _UNUSED}
    for name in _EMBEDDINGS[1:]:
        if not _equal(sources.pop(name, embedding), embedding):
            raise ConversionError(
                f"{directory}: the tensors {name} and {EMBEDDING} differ; expected equal ones."
            )
    sources[EMBEDDING] = embedding
    if tied:
        sources.pop(LOGITS, None)
    else:
        # mT5 without a projection uses the embedding, unscaled.
        sources[LOGITS] = embedding if head is None else head
    mapping.check_shapes(
        {name: tensor.shape for name, tensor in sources.items()},
        {entry.hf: entry.hf_shape for entry in entries},
        "config.json implies",
        f"The tensors of {directory} do not match its config.json",
    )
    if scaled and not tied:  # T5X scales logits only if the projection is tied.
        sources[LOGITS] = _scaled(sources[LOGITS], architecture.emb_dim**-0.5)
    names = {f"target/{entry.t5x}": entry for entry in entries}
    return {
        name: sources[entry.hf].view(name, transposed=entry.transposed)
        for name, entry in names.items()
    }


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    def read(index: Index) -> np.ndarray[Any, Any]:
        return tensor.read(index).astype(np.float32) * np.float32(factor)

    return Tensor(tensor.name, tensor.shape, np.dtype(np.float32), read, where=tensor.where)


def _equal(a: Tensor, b: Tensor) -> bool:
    if a is b or a.shape != b.shape or len(a.shape) != 2:
        return a is b
    blocks = row_blocks(a.shape, a.dtype.itemsize)
    return all(np.array_equal(a.read((rows,)), b.read((rows,))) for rows in blocks)
