"""Writes `flax_model.msgpack`, the weights of transformers 4's Flax classes, tensor by tensor.

Flax is not used, because it imports JAX and needs the whole model in memory.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from conversion.blocks import row_major
from conversion.mapping import Entry
from conversion.tensor import Tensor
from mtf.storage import AnyPath, write_parts

FLAX_WEIGHTS = "flax_model.msgpack"
# flax.serialization: the extension type of an array; longer ones are divided into such chunks.
_NDARRAY = 1
_CHUNK_BYTES = 2**30


def flax_name(hf: str) -> str:
    """Returns the name in Flax of a tensor in PyTorch: "shared.weight" is "shared/embedding".

    Kernels are (in, out) in Flax, as in T5X.
    """
    *parents, _ = hf.split(".")
    last = "kernel"
    if parents[-1] in ("shared", "relative_attention_bias"):
        last = "embedding"
    elif parents[-1].endswith("layer_norm"):
        last = "weight"
    return "/".join((*parents, last))


def write_flax(
    directory: AnyPath,
    entries: Sequence[Entry],
    tensors: Mapping[str, Tensor],
    dtype: np.dtype[Any],
) -> None:
    """Writes `flax_model.msgpack`; tensors are read one at a time, large ones in parts.

    Args:
      directory: existing directory.
      entries: the tensors to write.
      tensors: by T5X's names without "target/".
      dtype: type of the written tensors.
    """
    named = {
        flax_name(entry.hf): tensors[entry.t5x]
        .cast(dtype)
        .view(entry.hf, transposed=entry.hf.endswith("relative_attention_bias.weight"))
        for entry in entries
    }
    names = sorted(named, key=lambda name: name.split("/"))
    content = row_major([named[name] for name in names], dtype)
    write_parts(
        directory / FLAX_WEIGHTS, _tree([name.split("/") for name in names], named, content)
    )


def _tree(
    paths: Sequence[Sequence[str]],
    tensors: Mapping[str, Tensor],
    content: Iterator[memoryview],
    depth: int = 0,
) -> Iterator[bytes | memoryview]:
    """Packs the nested dict of those `paths`, which agree up to `depth`.

    `content` yields the bytes of all tensors in order.
    """
    groups = [(key, list(group)) for key, group in itertools.groupby(paths, lambda p: p[depth])]
    yield msgpack.Packer().pack_map_header(len(groups))
    for key, group in groups:
        yield msgpack.packb(key)
        if len(group[0]) == depth + 1:
            yield from _tensor(tensors["/".join(group[0])], content)
        else:
            yield from _tree(group, tensors, content, depth + 1)


def _tensor(tensor: Tensor, content: Iterator[memoryview]) -> Iterator[bytes | memoryview]:
    size = math.prod(tensor.shape) * tensor.dtype.itemsize
    if size <= _CHUNK_BYTES:
        yield _array_header(tensor.shape, tensor.dtype.name, size)
        while size:
            block = next(content)
            size -= len(block)
            yield block
        return
    sizes = [min(_CHUNK_BYTES, size - start) for start in range(0, size, _CHUNK_BYTES)]
    shape = {str(i): length for i, length in enumerate(tensor.shape)}
    packer = msgpack.Packer()
    yield packer.pack_map_header(3)
    for key, value in (("__msgpack_chunked_array__", True), ("shape", shape)):
        yield msgpack.packb(key) + msgpack.packb(value)
    yield msgpack.packb("chunks") + packer.pack_map_header(len(sizes))
    rest = memoryview(b"")
    for number, left in enumerate(sizes):
        yield msgpack.packb(str(number))
        yield _array_header((left // tensor.dtype.itemsize,), tensor.dtype.name, left)
        while left:
            rest = rest or next(content)
            yield rest[:left]
            left, rest = left - len(rest[:left]), rest[left:]


def _array_header(shape: Sequence[int], dtype: str, size: int) -> bytes:
    """Returns what precedes the bytes of an array: an extension of [shape, type, bytes]."""
    inside = b"\x93" + msgpack.packb(list(shape)) + msgpack.packb(dtype) + _length(0xC4, size)
    return _length(0xC7, len(inside) + size) + bytes([_NDARRAY]) + inside


def _length(code: int, size: int) -> bytes:
    """Returns msgpack's code of bytes or an extension, with 8, 16 or 32 bits for the length."""
    bits = next(i for i, limit in enumerate((2**8, 2**16, 2**32)) if size < limit)
    return struct.pack(f">B{'BHI'[bits]}", code + bits, size)
