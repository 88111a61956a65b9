"""Writes `flax_model.msgpack` for the Flax classes of transformers 4, tensor by tensor.

This module does not use Flax, which imports JAX and needs the whole model in memory.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from conversion.blocks import in_order
from conversion.mapping import Entry
from conversion.tensor import Tensor
from mtf.storage import AnyPath, write_parts

FLAX_WEIGHTS = "flax_model.msgpack"
# flax.serialization's extension type for an array, and the size above which it splits an array.
_NDARRAY = 1
_CHUNK_BYTES = 2**30


def flax_name(hf: str) -> str:
    """Returns the Flax name of a PyTorch tensor: "shared.weight" becomes "shared/embedding"."""
    *parents, _ = hf.split(".")
    last = "kernel"
    if parents[-1] in ("shared", "relative_attention_bias"):
        last = "embedding"
    elif parents[-1].endswith("layer_norm"):
        last = "weight"
    return "/".join((*parents, last))


def flax_extension(array: np.ndarray[Any, Any]) -> msgpack.ExtType:
    """Returns a msgpack extension of flax.serialization with an array's shape, dtype and bytes."""
    packed = msgpack.packb((array.shape, array.dtype.name, array.tobytes()))
    return msgpack.ExtType(_NDARRAY, packed)


def write_flax(
    directory: AnyPath,
    entries: Sequence[Entry],
    tensors: Mapping[str, Tensor],
    dtype: np.dtype[Any],
) -> None:
    """Writes `flax_model.msgpack`, reading only a few tensors at a time to limit memory use.

    Args:
      directory: an existing directory.
      entries: the parameters to write.
      tensors: dict mapping T5X's names, without "target/", to tensors.
      dtype: the type of the written tensors.
    """
    named = {
        flax_name(entry.hf): tensors[entry.t5x]
        .cast(dtype)
        .view(entry.hf, transposed=entry.hf.endswith("relative_attention_bias.weight"))
        for entry in entries
    }
    paths = sorted(name.split("/") for name in named)
    ordered = (named["/".join(path)] for path in paths)
    jobs = ((tensor.nbytes, functools.partial(_packed, tensor)) for tensor in ordered)
    write_parts(directory / FLAX_WEIGHTS, _tree(paths, in_order(jobs)))


def _tree(
    paths: Sequence[Sequence[str]], arrays: Iterator[Iterable[bytes]], depth: int = 0
) -> Iterator[bytes]:
    """Yields the msgpack encoding of a nested dict: each path leads to the next of the `arrays`.

    All `paths` must have the same first `depth` parts, which are omitted.
    """
    groups = [(key, list(group)) for key, group in itertools.groupby(paths, lambda p: p[depth])]
    yield msgpack.Packer().pack_map_header(len(groups))
    for key, group in groups:
        yield msgpack.packb(key)
        is_leaf = len(group[0]) == depth + 1
        yield from next(arrays) if is_leaf else _tree(group, arrays, depth + 1)


def _packed(tensor: Tensor) -> Iterable[bytes]:
    """Returns the parts of a tensor's encoding; a large tensor is encoded in chunks."""
    array = tensor.read()
    if array.nbytes <= _CHUNK_BYTES:
        return [msgpack.packb(flax_extension(array))]
    size = _CHUNK_BYTES // array.itemsize
    chunks = [array.reshape(-1)[start : start + size] for start in range(0, array.size, size)]
    shape = {str(i): length for i, length in enumerate(array.shape)}
    header = msgpack.Packer().pack_map_header(3)
    for key, value in (("__msgpack_chunked_array__", True), ("shape", shape)):
        header += msgpack.packb(key) + msgpack.packb(value)
    header += msgpack.packb("chunks") + msgpack.Packer().pack_map_header(len(chunks))
    packed = (
        msgpack.packb(str(i)) + msgpack.packb(flax_extension(x)) for i, x in enumerate(chunks)
    )
    return itertools.chain([header], packed)
