"""Safetensors tensor by tensor, so that no file's content is ever in memory as a whole.

The format: 8 bytes with the header's length, the header as JSON, then the raw arrays in order.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from conversion.errors import ConversionError, IncompleteCheckpoint

_DTYPES = {
    np.dtype(np.float32): "F32",
    np.dtype(ml_dtypes.bfloat16): "BF16",
}
_READABLE = {name: dtype for dtype, name in _DTYPES.items()} | {"F16": np.dtype(np.float16)}


@dataclasses.dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
      path: the file.
      offset: where its numbers begin.
      shape: of the tensor.
      dtype: of the numbers.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Reads what a slice for each dimension selects."""
        mapped = np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        return np.array(mapped[index])


def read_header(path: Path) -> dict[str, Stored]:
    """Returns the tensors of a file by their names; reads none of them.

    Raises:
      IncompleteCheckpoint: the file is not there, or cut off.
      ConversionError: it is not in this format, or has tensors of a type that is not read.
    """
    if not path.is_file():
        raise IncompleteCheckpoint(f"{path.parent} lacks {path.name}.")
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < size else None
        if header is None:
            raise IncompleteCheckpoint(f"{path} is cut off: its header alone is longer.")
        found, end = {}, 0
        for name, described in header.items():
            if name == "__metadata__":
                continue
            dtype = described["dtype"]
            if dtype not in _READABLE:
                raise ConversionError(
                    f"{path}: {name} has type {dtype}; expected one of {', '.join(_READABLE)}."
                )
            start, stop = described["data_offsets"]
            shape = tuple(described["shape"])
            found[name] = Stored(path, 8 + length + start, shape, _READABLE[dtype])
            if stop - start != math.prod(shape) * _READABLE[dtype].itemsize:
                raise ValueError(name)
            end = max(end, stop)
    except ConversionError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConversionError(f"{path} is not a safetensors file.") from error
    if size < 8 + length + end:
        raise IncompleteCheckpoint(f"{path} is cut off: it has {size} bytes of {8 + length + end}.")
    return found


@dataclasses.dataclass(frozen=True)
class Output:
    """A tensor to be written: `make` gives its array when its turn comes."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    make: Callable[[], np.ndarray[Any, Any]]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_sharded(directory: Path, tensors: Sequence[Output], max_shard_size: int) -> list[str]:
    """Writes `model.safetensors`, or several with `model.safetensors.index.json`.

    Args:
      directory: exists.
      tensors: in the order in which they are to lie in the files.
      max_shard_size: bytes of tensors in a file; a larger tensor has a file of its own.

    Returns:
      The names of the files with tensors.
    """
    shards: list[list[Output]] = [[]]
    for tensor in tensors:
        filled = sum(t.nbytes for t in shards[-1])
        if shards[-1] and filled + tensor.nbytes > max_shard_size:
            shards.append([])
        shards[-1].append(tensor)
    if len(shards) == 1:
        write_file(directory / "model.safetensors", tensors)
        return ["model.safetensors"]

    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_file(directory / name, shard)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors)},
        "weight_map": {
            t.name: name for name, shard in zip(names, shards, strict=True) for t in shard
        },
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return names


def write_file(path: Path, tensors: Sequence[Output]) -> None:
    """Writes one safetensors file, holding one tensor at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the arrays begin aligned
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors:
            array = np.ascontiguousarray(tensor.make(), dtype=tensor.dtype)
            if array.shape != tensor.shape:
                raise ValueError(f"{tensor.name} has shape {array.shape}, not {tensor.shape}")
            file.write(array.reshape(-1).view(np.uint8).data)
