"""Opens checkpoints in T5X's layout: a msgpack file `checkpoint`, a directory per large array."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgpack
import numpy as np

from conversion.tensor import (
    Checkpoint,
    ConversionError,
    IncompleteCheckpoint,
    Tensor,
    array_tensor,
    dtype_from_name,
    zarr_tensor,
)

# flax.serialization's extension types, and its key for an array in chunks (over 1 GiB). Flax is not
# used because it imports JAX and cannot read the bfloat16 of older versions.
_NDARRAY, _COMPLEX, _NUMPY_SCALAR = 1, 2, 3
_CHUNKED = "__msgpack_chunked_array__"


def open_zarr(path: Path, step: int | None) -> Checkpoint:
    """Opens a directory that has a file `checkpoint`; raises ConversionError if it cannot."""
    content = (path / "checkpoint").read_bytes()
    if b"model_checkpoint_path" in content[:200]:
        raise ConversionError(
            f"{path} is a Mesh TensorFlow checkpoint, which is not supported yet."
        )
    try:
        tree = msgpack.unpackb(content, ext_hook=_unpack_extension, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise IncompleteCheckpoint(
            f"{path / 'checkpoint'} is truncated or damaged ({len(content)} bytes): {error}"
        ) from error
    if not isinstance(tree, dict) or "target" not in (tree.get("optimizer") or {}):
        raise ConversionError(
            f"{path / 'checkpoint'} is not a T5X checkpoint: it has no optimizer/target."
        )
    tree.update(tree.pop("optimizer"))
    tree.pop("version", None)
    tensors = {name: _tensor(path, name, leaf) for name, leaf in _leaves(tree)}
    return Checkpoint(path, "t5x-zarr", step, tensors)


def _leaves(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        is_tree = isinstance(value, Mapping) and _CHUNKED not in value
        if is_tree and not (isinstance(value.get("driver"), str) and "kvstore" in value):
            yield from _leaves(value, f"{prefix}{key}/")
        elif value is not None:
            yield f"{prefix}{key}", value


def _tensor(path: Path, name: str, leaf: Any) -> Tensor:
    if not isinstance(leaf, Mapping):
        return array_tensor(name, np.asarray(leaf))
    if _CHUNKED in leaf:
        return array_tensor(name, _join_chunks(leaf))
    if leaf["driver"] != "zarr":
        raise ConversionError(f"{path}: {name} has driver {leaf['driver']!r}; expected 'zarr'.")
    # A released checkpoint names a bucket or an absolute path, older ones one level up. In a local
    # copy, the array is always in a directory beside the msgpack file.
    stored = leaf["kvstore"].get("path") or leaf.get("path") or name.replace("/", ".")
    directory = path / PurePosixPath(stored).name
    try:
        metadata = (directory / ".zarray").read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise IncompleteCheckpoint(
            f"{path} is incomplete: {name} should be in {directory.name}/, "
            "which is missing or has no .zarray."
        ) from error
    kvstore = {"driver": "file", "path": f"{directory.resolve()}{os.sep}"}
    # The key of a chunk may be a path such as 0/1.
    files = {file.relative_to(directory).as_posix() for file in directory.rglob("*")}
    tensor = zarr_tensor(name, metadata, files, kvstore, str(path))
    noted = (leaf.get("metadata") or {}).get("shape")
    if noted is not None and tuple(noted) != tensor.shape:
        raise ConversionError(
            f"{path}: {name} has shape {tensor.shape} in {directory.name}/, "
            f"but {tuple(noted)} in the file 'checkpoint'."
        )
    return tensor


def _unpack_extension(code: int, data: bytes) -> Any:
    """Decodes flax's msgpack extensions: [shape, dtype name, bytes], or a complex number."""
    if code == _COMPLEX:
        return complex(*msgpack.unpackb(data))
    if code not in (_NDARRAY, _NUMPY_SCALAR):
        raise ValueError(f"unknown msgpack extension {code}")
    shape, dtype, buffer = msgpack.unpackb(data, strict_map_key=False)
    return np.frombuffer(buffer, dtype=dtype_from_name(dtype)).reshape(shape)


def _join_chunks(leaf: Mapping[Any, Any]) -> np.ndarray[Any, Any]:
    def ordered(numbered: Mapping[str, Any]) -> list[Any]:
        return [numbered[str(i)] for i in range(len(numbered))]

    return np.concatenate(ordered(leaf["chunks"])).reshape(ordered(leaf["shape"]))
