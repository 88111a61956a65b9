"""Writes tensors as zarr arrays, in parts, so that memory does not grow with the model."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorstore as ts

from conversion.blocks import in_order
from conversion.tensor import ConversionError, Tensor

# T5X's size of a chunk (`_DESIRED_CHUNK_SIZE_BYTES` in t5x/checkpoints.py).
_CHUNK_BYTES = 64 * 2**20
# Larger tensors are read chunk by chunk; small ones as a whole, in case their stored chunks differ.
_BYTES_AT_ONCE = 128 * 2**20


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


def zarr_metadata(tensor: Tensor, compressor: dict[str, Any]) -> dict[str, Any]:
    """Returns the metadata that T5X notes of an array; `compressor` is zarr's description."""
    chunks = chunk_shape(tensor.shape, tensor.dtype.itemsize)
    return {"chunks": chunks, "compressor": compressor, "shape": list(tensor.shape)}


def write_zarr(
    places: Iterable[tuple[Tensor, dict[str, Any]]],
    compressor: dict[str, Any],
    *,
    context: ts.Context | None = None,
    transaction: ts.Transaction | None = None,
) -> None:
    """Writes tensors in zarr's version 2 format, with all their chunks, several at a time.

    Args:
      places: tensors, which are read as a whole, or chunk by chunk if they are large; and
        TensorStore's specs of their locations.
      compressor: zarr's description of the compression.
      context, transaction: those of TensorStore, if any.

    Raises ConversionError if a tensor cannot be read or written.
    """

    def write(tensor: Tensor, opened: ts.TensorStore, part: tuple[slice, ...]) -> None:
        content = tensor.read(part)
        with _naming(tensor):
            opened[part].write(content).result()

    def jobs() -> Iterator[tuple[int, Callable[[], None]]]:
        for tensor, kvstore in places:
            metadata = zarr_metadata(tensor, compressor)
            spec = {
                "driver": "zarr",
                "dtype": tensor.dtype.name,
                "kvstore": kvstore,
                "metadata": metadata,
                # Readers take a missing chunk for an incomplete checkpoint.
                "store_data_equal_to_fill_value": True,
            }
            with _naming(tensor):
                opened = ts.open(
                    spec, create=True, context=context, transaction=transaction
                ).result()
            for part in _parts(tensor, metadata["chunks"]):
                size = math.prod(s.stop - s.start for s in part) * tensor.dtype.itemsize
                yield size, functools.partial(write, tensor, opened, part)

    for _ in in_order(jobs()):
        pass


@contextlib.contextmanager
def _naming(tensor: Tensor) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ConversionError(f"The tensor {tensor.name} cannot be written: {error}") from error


def _parts(tensor: Tensor, chunk: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Returns the bounds of all chunks, or of the whole tensor if it is small."""
    if math.prod(tensor.shape) * tensor.dtype.itemsize <= _BYTES_AT_ONCE:
        yield tuple(slice(0, size) for size in tensor.shape)
        return
    starts = (range(0, size, step) for size, step in zip(tensor.shape, chunk, strict=True))
    for corner in itertools.product(*starts):
        yield tuple(
            slice(start, min(start + step, size))
            for start, step, size in zip(corner, chunk, tensor.shape, strict=True)
        )
