"""Checkpoints as dicts of tensors, which are read on demand; and the reading of zarr arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal

import ml_dtypes
import msgpack
import numpy as np
import tensorstore as ts

from mtf.storage import AnyPath, StorePath, read_exactly

# Large tensors are read in blocks of rows of this size.
BYTES_AT_ONCE = 16 * 2**20
_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
# An array has fewer chunks; a damaged description may have so many that they cannot be listed.
_MAX_CHUNKS = 10**6
# Types of the parameters that are written.
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

# Number of values that are checked at a time.
_PART = 2**20

Index = types.EllipsisType | tuple[slice, ...]


class ConversionError(ValueError):
    """Raised if a checkpoint cannot be used; the message says what is wrong, and where."""


# What third-party code raises for damaged files.
DAMAGES = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    OSError,
    MemoryError,
    RuntimeError,  # also NotImplementedError and RecursionError
    msgpack.UnpackException,
)


class IncompleteCheckpoint(ConversionError):
    """Raised if a checkpoint was not completely written, or files are missing."""


def reason(error: Exception) -> str:
    """Returns the first line of an error, with its class if the text alone says little."""
    text = str(error).partition("\n")[0].strip()
    is_clear = isinstance(error, (ValueError, OSError)) and " " in text
    return text if is_clear else f"{type(error).__name__} {text}".strip()


@contextlib.contextmanager
def damaged(where: object, what: str = "is truncated or damaged") -> Iterator[None]:
    """Turns errors of decoding a file into IncompleteCheckpoint."""
    try:
        yield
    except ConversionError:
        raise
    except DAMAGES as error:
        raise IncompleteCheckpoint(f"{where} {what}: {reason(error)}.") from error


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An array of a checkpoint, which `read` reads.

    Attributes:
      name: name in T5X ("target/encoder/layers_0/attention/query/kernel") or Hugging Face.
      shape: shape of the whole array.
      dtype: type of the stored array.
      chunks: shape of the chunks that are read as a whole; None if any part can be read alone.
      where: file or directory of the array, for messages.
      stored: name in the file, if it is another one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    _reader: Callable[[Index], np.ndarray[Any, Any]] = dataclasses.field(repr=False, compare=False)
    chunks: tuple[int, ...] | None = None
    where: str = dataclasses.field(default="the checkpoint", compare=False)
    stored: str | None = dataclasses.field(default=None, compare=False)

    def read(self, index: Index = ...) -> np.ndarray[Any, Any]:
        """Reads the array, or a part by a tuple of slices; raises ConversionError if it cannot."""
        try:
            return self._reader(index)
        except ConversionError:  # A view has named the tensor already.
            raise
        except DAMAGES as error:
            raise ConversionError(
                f"The tensor {self.name} of {self.where} cannot be read: {reason(error)}"
            ) from error

    def view(self, name: str, *, transposed: bool) -> Tensor:
        """Returns the same tensor under another name, `transposed` or not."""

        def read(index: Index) -> np.ndarray[Any, Any]:
            if not transposed:
                return self.read(index)
            rows, columns = (*(() if index is ... else index), slice(None), slice(None))[:2]
            return self.read((columns, rows)).T

        order = slice(None, None, -1 if transposed else 1)
        chunks = None if self.chunks is None else self.chunks[order]
        stored = self.stored or self.name
        return Tensor(name, self.shape[order], self.dtype, read, chunks, self.where, stored)

    def cast(self, dtype: np.dtype[Any]) -> Tensor:
        """Returns the same tensor as another type, rounded to the nearest value."""
        if dtype == self.dtype:
            return self

        def read(index: Index) -> np.ndarray[Any, Any]:
            return self.read(index).astype(dtype)

        return dataclasses.replace(self, dtype=dtype, _reader=read)

    def reporting(self, report: Callable[[int], object]) -> Tensor:
        """Returns the same tensor; each `read` calls `report` with the number of bytes."""

        def read(index: Index) -> np.ndarray[Any, Any]:
            array = self.read(index)
            report(array.nbytes)
            return array

        return dataclasses.replace(self, _reader=read)

    def finite(self) -> Tensor:
        """Returns the same tensor; its `read` raises ConversionError for NaN and infinity."""

        def read(index: Index) -> np.ndarray[Any, Any]:
            array = self.read(index)
            # In parts, so that the array of booleans is small.
            flat = array.ravel(order="K")
            parts = (flat[i : i + _PART] for i in range(0, flat.size, _PART))
            bad = sum(part.size - int(np.count_nonzero(np.isfinite(part))) for part in parts)
            if bad:
                there = f" ({self.stored})" if self.stored not in (None, self.name) else ""
                raise ConversionError(
                    f"The tensor {self.name}{there} of {self.where} contains NaN or infinity "
                    f"({bad:,} of {array.size:,} values). Choose another checkpoint, or allow "
                    "these values (--allow-non-finite)."
                )
            return array

        return dataclasses.replace(self, _reader=read)


@dataclasses.dataclass
class Checkpoint:
    """An opened checkpoint.

    Attributes:
      path: directory of the checkpoint.
      layout: format of the checkpoint.
      step: step in the directory's name, if any.
      tensors: T5X's name ("target/…", "state/param_states/…/v_row", "state/step") → tensor.
      described: mlp_activations, dropout_rate and relative_attention_max_distance of a Hugging Face
        checkpoint, which tensors do not show, and special_ids if they are not T5's; else empty.
      is_scanned: whether the arrays are those of T5X's scanned network.
      source: where the user has it from: the name of a model of the hub, else the path.
      num_merged: number of kernels that are read with their LoRA adapters.
    """

    path: AnyPath
    layout: Literal["t5x-zarr", "orbax", "huggingface", "mesh-tensorflow"]
    step: int | None
    tensors: dict[str, Tensor]
    described: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_scanned: bool = False
    source: str = ""
    num_merged: int = 0

    def __post_init__(self) -> None:
        self.source = self.source or str(self.path)

    def parameters(self) -> dict[str, Tensor]:
        """Returns the model's parameters by their names without "target/"."""
        parts = ((name.partition("/"), tensor) for name, tensor in self.tensors.items())
        return {name: tensor for (root, _, name), tensor in parts if root == "target"}


def index_bounds(index: Index, shape: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (start, stop) of an index for each dimension of an array."""
    slices = (*(() if index is ... else index), *[slice(None)] * len(shape))
    return [s.indices(size)[:2] for s, size in zip(slices, shape, strict=False)]


def row_blocks(shape: Sequence[int], itemsize: int) -> Iterator[slice]:
    """Yields slices of the first dimension that together are all rows of an array.

    A slice has at most 16 MiB, or is a single row.
    """
    row = math.prod(shape[1:]) * itemsize
    step = max(1, BYTES_AT_ONCE // max(1, row))
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def check_dtype(name: str) -> np.dtype[Any]:
    """Returns the type of parameters to write; raises ConversionError for others."""
    if name in DTYPES:
        return DTYPES[name]
    message = f"dtype must be float32 or bfloat16, not {name}."
    if name in ("float16", "fp16", "half"):
        message += " T5's activations overflow float16, whose largest value is 65,504."
    raise ConversionError(message)


def read_range(path: AnyPath, start: int, stop: int) -> bytes:
    """Returns the bytes of a file from `start` up to `stop`, or up to its end if it is local."""
    if isinstance(path, StorePath):
        return bytes(read_exactly(path, start, stop))
    with path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)


def dtype_from_name(name: str) -> np.dtype[Any]:
    """Returns the numpy dtype of a type's name in zarr or numpy, including bfloat16."""
    # Older versions of Flax wrote bfloat16 as "V2", numpy's name for two untyped bytes.
    return np.dtype(ml_dtypes.bfloat16) if name in ("bfloat16", "V2") else np.dtype(name)


def array_tensor(name: str, array: np.ndarray[Any, Any], where: str = "the checkpoint") -> Tensor:
    """Returns a tensor that is in memory."""
    shape, dtype = array.shape, array.dtype
    return Tensor(name, shape, dtype, lambda index: np.array(array[index]), where=where)


def is_shape(sizes: Any) -> bool:
    """Returns whether a value of a file is the shape of an array."""
    return isinstance(sizes, (list, tuple)) and all(type(n) is int and n >= 0 for n in sizes)


def _shape(sizes: Any) -> tuple[int, ...]:
    if not is_shape(sizes):
        raise ValueError(f"{sizes!r} is no shape")
    return tuple(sizes)


def zarr_tensor(
    name: str,
    metadata: bytes,
    files: Collection[str] | None,
    kvstore: dict[str, Any],
    where: str,
    *,
    all_chunks_stored: bool = True,
    cache: ts.Context | None = None,
) -> Tensor:
    """Returns a tensor that is stored in zarr's version 2 format.

    Args:
      name: name of the tensor.
      metadata: content of `.zarray`.
      files: names of the other keys of the array; None if the store cannot list them.
      kvstore: TensorStore's spec of the array's location.
      where: location for messages.
      all_chunks_stored: whether chunks of zeros are stored, too; else missing chunks are allowed.
      cache: keeps decoded chunks between reads; None: each read decodes them.
    """
    with damaged(f"{where}: the .zarray of {name}", "is damaged"):
        described = json.loads(metadata)
        shape, chunks = (_shape(described[key]) for key in ("shape", "chunks"))
        dtype = dtype_from_name(described["dtype"])
        separator = str(described.get("dimension_separator", "."))
        counts = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
        if any(chunk > max(1, size) for size, chunk in zip(shape, chunks, strict=True)):
            raise ValueError(f"its chunks {chunks} are larger than its shape {shape}")
        if math.prod(counts) > _MAX_CHUNKS:
            raise ValueError(f"shape {shape} and chunks {chunks} are {math.prod(counts):,} chunks")
    if all_chunks_stored and files is not None:
        keys = itertools.product(*map(range, counts))
        expected = [separator.join(map(str, key)) or "0" for key in keys]
        missing = [key for key in expected if key not in files]
        if missing:
            raise IncompleteCheckpoint(
                f"{where} is incomplete: {name} lacks {len(missing)} of its {len(expected)} chunks "
                f"({', '.join(missing[:3])}{', …' if len(missing) > 3 else ''})."
            )

    def read(index: Index) -> np.ndarray[Any, Any]:
        wanted = [stop - start for start, stop in index_bounds(index, shape)]
        num_bytes = dtype.itemsize * max(math.prod(wanted), math.prod(chunks))
        if num_bytes > _MEMORY:  # TensorStore would end the process.
            raise MemoryError(f"shape {shape}, chunks {chunks}: {num_bytes:,} bytes")
        spec = {
            "driver": "zarr",
            "kvstore": kvstore,
            "metadata": described,
            "recheck_cached_data": "open" if cache is None else False,
            "fill_missing_data_reads": not all_chunks_stored,
        }
        opened = ts.open(spec, read=True, open=True, assume_metadata=True, context=cache)
        return np.asarray(opened.result()[index].read().result())

    return Tensor(name, shape, dtype, read, chunks, where)
