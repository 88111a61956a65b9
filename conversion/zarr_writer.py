"""Writes tensors as zarr arrays, in parts, so that memory does not grow with the model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import tensorstore as ts

from conversion.tensor import ConversionError, Tensor

# T5X's size of a chunk (`_DESIRED_CHUNK_SIZE_BYTES` in t5x/checkpoints.py).
_CHUNK_BYTES = 64 * 2**20
# Larger tensors are read in parts, so that readers decompress each chunk about once.
BYTES_AT_ONCE = 128 * 2**20


def chunk_shape(shape: Sequence[int], itemsize: int) -> list[int]:
    """Returns the shape of chunks of up to 64 MiB, as T5X chooses it.

    The longest dimension, the first one of several, is replaced by its next smaller divisor until
    a chunk is small enough.
    """
    chunk = list(shape)
    while math.prod(chunk) * itemsize > _CHUNK_BYTES:
        longest = max(range(len(chunk)), key=chunk.__getitem__)
        size = chunk[longest] - 1
        while shape[longest] % size:
            size -= 1
        chunk[longest] = size
    return chunk


def write_zarr(
    tensor: Tensor,
    kvstore: dict[str, Any],
    compressor: dict[str, Any],
    *,
    context: ts.Context | None = None,
    transaction: ts.Transaction | None = None,
) -> dict[str, Any]:
    """Writes a tensor in zarr's version 2 format, with all its chunks; returns its metadata.

    Args:
      tensor: tensor to write; read as a whole, or chunk by chunk if it is large.
      kvstore: TensorStore's spec of the array's location.
      compressor: zarr's description of the compression.
      context, transaction: those of TensorStore, if any.
    """
    chunk = chunk_shape(tensor.shape, tensor.dtype.itemsize)
    metadata = {"chunks": chunk, "compressor": compressor, "shape": list(tensor.shape)}
    spec = {
        "driver": "zarr",
        "dtype": tensor.dtype.name,
        "kvstore": kvstore,
        "metadata": metadata,
        # Readers take a missing chunk for an incomplete checkpoint.
        "store_data_equal_to_fill_value": True,
    }
    try:
        opened = ts.open(spec, create=True, context=context, transaction=transaction).result()
        for part in _parts(tensor, chunk):
            opened[part].write(tensor.read(part)).result()
    except ConversionError:
        raise
    except ValueError as error:
        raise ConversionError(f"The tensor {tensor.name} cannot be written: {error}") from error
    return metadata


def _parts(tensor: Tensor, chunk: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Returns the bounds of all chunks, or of the whole tensor if it is small."""
    if math.prod(tensor.shape) * tensor.dtype.itemsize <= BYTES_AT_ONCE:
        yield tuple(slice(0, size) for size in tensor.shape)
        return
    starts = (range(0, size, step) for size, step in zip(tensor.shape, chunk, strict=True))
    for corner in itertools.product(*starts):
        yield tuple(
            slice(start, min(start + step, size))
            for start, step, size in zip(corner, chunk, tensor.shape, strict=True)
        )
