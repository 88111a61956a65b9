"""Defines checkpoints and their tensors, which are read on demand, and reads zarr arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tensorstore as ts

from mtf.storage import AnyPath
from mtf.storage.errors import StorageError, failure_kind

_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
# The maximum number of chunks of an array; a damaged .zarray may imply too many to list.
_MAX_CHUNKS = 10**6
# Name → type, for the types in which parameters can be written.
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

# The number of values that `Tensor.finite` checks at a time.
_PART = 2**20

Index = types.EllipsisType | tuple[slice, ...]


class ConversionError(ValueError):
    """Raised if a checkpoint cannot be read, used or written."""


class IncompleteCheckpoint(ConversionError):
    """Raised if a checkpoint was not written completely, or if files are missing or damaged."""


def reason(error: Exception) -> str:
    """Returns the first line of an error's message, with the class name if that line is unclear."""
    text = str(error).partition("\n")[0].strip()
    is_clear = isinstance(error, (ValueError, OSError)) and " " in text
    return text if is_clear else f"{type(error).__name__} {text}".strip()


@contextlib.contextmanager
def damaged(where: object, what: str = "is truncated or damaged") -> Iterator[None]:
    """Converts an error raised in the block to IncompleteCheckpoint.

    A ConversionError or StorageError is raised unchanged.
    """
    try:
        yield
    except (ConversionError, StorageError):
        raise
    except Exception as error:  # Libraries raise errors of many types for damaged files.
        raise IncompleteCheckpoint(f"{where} {what}: {reason(error)}.") from error


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An array in a checkpoint, whose values are read on demand.

    Attributes:
      name: T5X's name ("target/encoder/layers_0/attention/query/kernel") or Hugging Face's name.
      shape: the shape of the whole array.
      dtype: the type of the array that `read` returns.
      chunks: the shape of the smallest parts that can be read, or None if parts can have any shape.
      where: the file or directory that contains the array, to be shown in messages.
      stored: the name of the array in the file, or None if this is `name`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    _reader: Callable[[Index], np.ndarray[Any, Any]] = dataclasses.field(repr=False, compare=False)
    chunks: tuple[int, ...] | None = None
    where: str = dataclasses.field(default="the checkpoint", compare=False)
    stored: str | None = dataclasses.field(default=None, compare=False)

    @property
    def nbytes(self) -> int:
        """The size of the whole array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, index: Index = ...) -> np.ndarray[Any, Any]:
        """Returns the array or a part of it; raises ConversionError if it cannot be read."""
        try:
            return self._reader(index)
        except ConversionError:  # The message already names the tensor.
            raise
        except Exception as error:  # Libraries raise errors of many types for damaged files.
            is_damage = failure_kind(error) in (None, "missing")
            raise (IncompleteCheckpoint if is_damage else ConversionError)(
                f"The tensor {self.name} of {self.where} cannot be read: {reason(error)}"
            ) from error

    def view(self, name: str, *, transposed: bool) -> Tensor:
        """Returns the tensor with another name; if `transposed` is True, its axes are swapped."""

        def read(index: Index) -> np.ndarray[Any, Any]:
            if not transposed:
                return self.read(index)
            rows, columns = (*(() if index is ... else index), slice(None), slice(None))[:2]
            return self.read((columns, rows)).T

        order = slice(None, None, -1 if transposed else 1)
        chunks = None if self.chunks is None else self.chunks[order]
        stored = self.stored or self.name
        return Tensor(name, self.shape[order], self.dtype, read, chunks, self.where, stored)

    def mapped(
        self, function: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]], dtype: Any = None
    ) -> Tensor:
        """Returns a tensor whose `read` applies a function and returns `dtype` (None: the same)."""

        def read(index: Index) -> np.ndarray[Any, Any]:
            return function(self.read(index))

        return dataclasses.replace(self, dtype=np.dtype(dtype or self.dtype), _reader=read)

    def cast(self, dtype: np.dtype[Any]) -> Tensor:
        """Returns a tensor whose `read` converts the values to `dtype`, rounding to nearest."""
        return self if dtype == self.dtype else self.mapped(lambda x: x.astype(dtype), dtype)

    def observed(self, observe: Callable[[Index, np.ndarray[Any, Any]], object]) -> Tensor:
        """Returns a tensor whose `read` calls `observe` with the index and the array it returns."""

        def read(index: Index) -> np.ndarray[Any, Any]:
            array = self.read(index)
            observe(index, array)
            return array

        return dataclasses.replace(self, _reader=read)

    def finite(self) -> Tensor:
        """Returns a tensor whose `read` raises ConversionError if a value is NaN or infinite."""

        def checked(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            # Check the values in parts, to limit the size of the boolean array.
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

        return self.mapped(checked)


@dataclasses.dataclass
class Checkpoint:
    """An opened checkpoint.

    Attributes:
      path: the directory of the checkpoint or, for Mesh TensorFlow, the prefix of its files.
      layout: the name of the format, as in `conversion.formats`.
      step: the step in the name of the directory or file, or None if the name contains no step.
      tensors: dict mapping T5X's names ("target/…", "state/param_states/…/v_row", "state/step") to
        tensors.
      described: settings in a Hugging Face config.json that cannot be inferred from the tensors:
        mlp_activations, dropout_rate, relative_attention_max_distance, and special_ids if they
        differ from T5's.
      is_scanned: whether the files contain the stacked arrays of T5X's scanned network.
      source: the name of the model on the Hugging Face Hub, or else the path.
      num_merged: the number of kernels that are merged with LoRA adapters when they are read.
    """

    path: AnyPath
    layout: str
    step: int | None
    tensors: dict[str, Tensor]
    described: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_scanned: bool = False
    source: str = ""
    num_merged: int = 0

    def __post_init__(self) -> None:
        self.source = self.source or str(self.path)

    @property
    def title(self) -> str:
        """The source, the layout and the step as one line of text."""
        kind = ", scanned network" * self.is_scanned
        step = "" if self.step is None else f", step {self.step}"
        return f"{self.source} ({self.layout}{kind}{step})"

    @property
    def has_state(self) -> bool:
        """Whether the checkpoint contains optimizer state."""
        return any(name.startswith("state/param_states/") for name in self.tensors)

    def parameters(self) -> dict[str, Tensor]:
        """Returns a dict mapping names, without "target/", to the model's parameters."""
        parts = ((name.partition("/"), tensor) for name, tensor in self.tensors.items())
        return {name: tensor for (root, _, name), tensor in parts if root == "target"}


def index_bounds(index: Index, shape: Sequence[int]) -> list[tuple[int, int]]:
    """Returns, for each dimension of an array, the (start, stop) range that an index selects."""
    slices = (*(() if index is ... else index), *[slice(None)] * len(shape))
    return [s.indices(size)[:2] for s, size in zip(slices, shape, strict=False)]


def check_dtype(name: str) -> np.dtype[Any]:
    """Returns the dtype called `name`; raises ConversionError if it is not in `DTYPES`."""
    if name in DTYPES:
        return DTYPES[name]
    message = f"dtype must be float32 or bfloat16, not {name}."
    if name in ("float16", "fp16", "half"):
        message += " T5's activations overflow float16, whose largest value is 65,504."
    raise ConversionError(message)


def dtype_from_name(name: str) -> np.dtype[Any]:
    """Returns the NumPy dtype for a name that zarr or NumPy uses, including "bfloat16"."""
    # Older versions of Flax wrote bfloat16 as "V2", NumPy's name for two untyped bytes.
    return np.dtype(ml_dtypes.bfloat16) if name in ("bfloat16", "V2") else np.dtype(name)


def array_tensor(name: str, array: np.ndarray[Any, Any], where: str = "the checkpoint") -> Tensor:
    """Returns a tensor for an array in memory."""
    shape, dtype = array.shape, array.dtype
    return Tensor(name, shape, dtype, lambda index: np.array(array[index]), where=where)


def is_shape(sizes: Any) -> bool:
    """Returns whether a value that was read from a file is a valid shape."""
    return isinstance(sizes, (list, tuple)) and all(type(n) is int and n >= 0 for n in sizes)


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
    """Returns a tensor for an array that is stored in version 2 of the zarr format.

    Args:
      name: the name of the tensor.
      metadata: the content of `.zarray`.
      files: the keys of the stored chunks, or None if the store cannot list them.
      kvstore: the TensorStore spec of the key-value store that contains the array.
      where: the location to show in error messages.
      all_chunks_stored: whether chunks of zeros are stored; if not, missing chunks are allowed.
      cache: a context whose cache keeps decoded chunks between reads, or None for no cache.
    """
    with damaged(f"{where}: the .zarray of {name}", "is damaged"):
        described = json.loads(metadata)
        shape, chunks = (tuple(described[key]) for key in ("shape", "chunks"))
        if not (is_shape(shape) and is_shape(chunks)):
            raise ValueError(f"its shape is {shape}, and that of its chunks is {chunks}")
        dtype = dtype_from_name(described["dtype"])
        separator = str(described.get("dimension_separator", "."))
        counts = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
        if any(chunk > max(1, size) for size, chunk in zip(shape, chunks, strict=True)):
            raise ValueError(f"its chunks {chunks} are larger than its shape {shape}")
        if math.prod(counts) > _MAX_CHUNKS:
            raise ValueError(f"shape {shape} has {math.prod(counts):,} chunks of shape {chunks}")
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
        if num_bytes > _MEMORY:  # TensorStore would abort the process.
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
