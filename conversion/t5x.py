"""Opens T5X checkpoints that consist of a msgpack file `checkpoint` and zarr arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import msgpack
import numpy as np

from conversion.scanned import is_stacked, new_cache
from conversion.tensor import (
    Checkpoint,
    ConversionError,
    IncompleteCheckpoint,
    Tensor,
    array_tensor,
    damaged,
    dtype_from_name,
    zarr_tensor,
)
from mtf.storage import AnyPath, file_sizes, is_listable, kvstore
from mtf.storage.pool import ReadingPool

# flax.serialization's extension types, and its key for an array of over 1 GiB, stored in chunks.
# Flax is not used, because it imports JAX and cannot read bfloat16 arrays of its older versions.
_NDARRAY, _NUMPY_SCALAR = 1, 3
_CHUNKED = "__msgpack_chunked_array__"
_FILES_AT_ONCE = 16


def open_zarr(path: AnyPath, step: int | None) -> Checkpoint:
    """Opens a directory that contains a file `checkpoint`; raises ConversionError if this fails."""
    content = (path / "checkpoint").read_bytes()
    file = path / "checkpoint"
    with damaged(file, f"is truncated or damaged ({len(content)} bytes)"):
        tree = msgpack.unpackb(content, ext_hook=_unpack_extension, strict_map_key=False)
    optimizer = tree.get("optimizer") if isinstance(tree, dict) else None
    if not isinstance(optimizer, dict) or not isinstance(optimizer.get("target"), dict):
        raise ConversionError(f"{file} is not a T5X checkpoint: it has no optimizer/target.")
    tree.update(tree.pop("optimizer"))
    tree.pop("version", None)
    with damaged(file):
        leaves = dict(_leaves(tree))
        folders = {name: _directory(name, leaf) for name, leaf in leaves.items() if _is_zarr(leaf)}
    stored = _Arrays(path, set(folders.values()))
    tensors = {}
    for name, leaf in leaves.items():
        with damaged(file, f"is damaged: {name}"):
            in_folder = name in folders
            tensors[name] = (
                _zarr(stored, name, leaf, folders[name]) if in_folder else _array(name, leaf, file)
            )
    return Checkpoint(path, "t5x-zarr", step, tensors)


def _leaves(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and _CHUNKED not in value and not _is_zarr(value):
            yield from _leaves(value, f"{prefix}{key}/")
        elif value is not None:
            yield f"{prefix}{key}", value


def _is_zarr(leaf: Any) -> bool:
    """Returns whether a leaf of the msgpack file describes a zarr array."""
    return isinstance(leaf, Mapping) and isinstance(leaf.get("driver"), str) and "kvstore" in leaf


def _array(name: str, leaf: Any, file: AnyPath) -> Tensor:
    array = _join_chunks(leaf) if isinstance(leaf, Mapping) else np.asarray(leaf)
    if array.dtype.kind not in "biufV":
        raise ValueError(f"it has type {array.dtype}")
    return array_tensor(name, array, str(file))


def _directory(name: str, leaf: Mapping[Any, Any]) -> str:
    """Returns the name of an array's directory, which is next to the msgpack file.

    Released checkpoints store either a bucket path or an absolute path, normally under "kvstore",
    but next to "kvstore" in older checkpoints. Once a checkpoint has been copied, only the last
    component of that path is still valid.
    """
    stored = leaf["kvstore"].get("path") or leaf.get("path") or name.replace("/", ".")
    return PurePosixPath(stored).name


class _Arrays:
    """The `.zarray` files and the chunk names of a checkpoint's zarr arrays, read all at once."""

    def __init__(self, path: AnyPath, folders: Collection[str]):
        self.path, self.cache = path, new_cache()
        files = [path / folder / ".zarray" for folder in folders]
        with ReadingPool(_FILES_AT_ONCE) as pool:
            self.metadata = dict(zip(folders, pool.map(_content, files), strict=True))
        self.files: dict[str, set[str]] | None = {} if is_listable(path) else None
        for name in file_sizes(path) if is_listable(path) else ():
            folder, _, file = name.partition("/")  # The name of a chunk may contain "/".
            if self.files is not None:
                self.files.setdefault(folder, set()).add(file)


def _content(file: AnyPath) -> bytes | None:
    """Returns the content of a file, or None if it does not exist."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _zarr(stored: _Arrays, name: str, leaf: Mapping[Any, Any], folder: str) -> Tensor:
    path = stored.path
    if leaf["driver"] != "zarr":
        raise ConversionError(
            f"{path}: {name} is stored in format {leaf['driver']!r}; expected 'zarr'."
        )
    metadata = stored.metadata.get(folder)
    if metadata is None:
        raise IncompleteCheckpoint(
            f"{path} is incomplete: the directory {folder}/ of {name} "
            "is missing or contains no .zarray."
        )
    files = None if stored.files is None else stored.files.get(folder, set())
    cache = stored.cache if is_stacked(name) else None
    tensor = zarr_tensor(name, metadata, files, kvstore(path / folder), str(path), cache=cache)
    noted = (leaf.get("metadata") or {}).get("shape")
    if noted is not None and tuple(noted) != tensor.shape:
        raise ConversionError(
            f"{path}: {name} has shape {tensor.shape} in {folder}/, "
            f"but {tuple(noted)} in the file 'checkpoint'."
        )
    return tensor


def _unpack_extension(code: int, data: bytes) -> Any:
    """Decodes a msgpack extension of Flax whose content is [shape, dtype name, bytes]."""
    if code not in (_NDARRAY, _NUMPY_SCALAR):
        raise ValueError(f"unknown msgpack extension {code}")
    shape, dtype, buffer = msgpack.unpackb(data, strict_map_key=False)
    return np.frombuffer(buffer, dtype=dtype_from_name(dtype)).reshape(shape)


def _join_chunks(leaf: Mapping[Any, Any]) -> np.ndarray[Any, Any]:
    def ordered(numbered: Mapping[str, Any]) -> list[Any]:
        return [numbered[str(i)] for i in range(len(numbered))]

    return np.concatenate(ordered(leaf["chunks"])).reshape(ordered(leaf["shape"]))
