"""Writing safetensors tensor by tensor, so that no file's content is ever in memory as a whole.

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

_DTYPES = {
    np.dtype(np.float32): "F32",
    np.dtype(ml_dtypes.bfloat16): "BF16",
}


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
