"""Writes tensors as zarr arrays in parts, to limit memory use."""

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

# T5X's maximum chunk size (`_DESIRED_CHUNK_SIZE_BYTES` in t5x/checkpoints.py).
_CHUNK_BYTES = 64 * 2**20
# Tensors above this size are read in parts that correspond to chunks of the output. Smaller
# tensors are read as a whole, because each of their parts might overlap several stored chunks.
_BYTES_AT_ONCE = 128 * 2**20


def chunk_shape(shape: Sequence[int], itemsize: int) -> list[int]:
    """Returns the chunk shape that T5X would choose, with chunks of up to 64 MiB.

    Until the chunk is small enough, its longest dimension (the first in a tie) is reduced to the
    next smaller divisor of the array's size in that dimension.
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
    """Returns the zarr metadata that T5X writes for an array; `compressor` is in zarr's format."""
    chunks = chunk_shape(tensor.shape, tensor.dtype.itemsize)
    return {"chunks": chunks, "compressor": compressor, "shape": list(tensor.shape)}


def write_zarr(
    located: Iterable[tuple[Tensor, dict[str, Any]]],
    compressor: dict[str, Any],
    *,
    context: ts.Context | None = None,
    transaction: ts.Transaction | None = None,
) -> None:
    """Writes tensors in parallel in version 2 of the zarr format, including chunks of zeros.

    Args:
      located: (tensor, TensorStore spec of the key-value store to write to) pairs.
      compressor: the compression, in zarr's format.
      context: the TensorStore context, or None for the default one.
      transaction: the TensorStore transaction, or None to write without a transaction.

    Raises:
      ConversionError: a tensor cannot be read or written.
    """

    def write(tensor: Tensor, opened: ts.TensorStore, part: tuple[slice, ...]) -> None:
        content = tensor.read(part)
        with _naming(tensor):
            opened[part].write(content).result()

    def jobs() -> Iterator[tuple[int, Callable[[], None]]]:
        for tensor, kvstore in located:
            metadata = zarr_metadata(tensor, compressor)
            spec = {
                "driver": "zarr",
                "dtype": tensor.dtype.name,
                "kvstore": kvstore,
                "metadata": metadata,
                # Readers treat a checkpoint with missing chunks as incomplete.
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
    """Yields the slices of each chunk, or those of the whole tensor if it is small."""
    if tensor.nbytes <= _BYTES_AT_ONCE:
        yield tuple(slice(0, size) for size in tensor.shape)
        return
    starts = (range(0, size, step) for size, step in zip(tensor.shape, chunk, strict=True))
    for corner in itertools.product(*starts):
        yield tuple(
            slice(start, min(start + step, size))
            for start, step, size in zip(corner, chunk, tensor.shape, strict=True)
        )
