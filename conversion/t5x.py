"""Opens T5X checkpoints that consist of a msgpack file `checkpoint` and zarr arrays."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from conversion.flax_msgpack import Array, leaves, unpacked
from conversion.scanned import is_stacked, new_cache
from conversion.tensor import (
    Checkpoint,
    ConversionError,
    IncompleteCheckpoint,
    Tensor,
    array_tensor,
    damaged,
    zarr_tensor,
)
from mtf.storage import AnyPath, file_sizes, is_listable, kvstore
from mtf.storage.pool import ReadingPool

_FILES_AT_ONCE = 16


def open_zarr(path: AnyPath, step: int | None) -> Checkpoint:
    """Opens a directory that contains a file `checkpoint`; raises ConversionError if this fails."""
    content = (path / "checkpoint").read_bytes()
    file = path / "checkpoint"
    with damaged(file, f"is truncated or damaged ({len(content)} bytes)"):
        tree = unpacked(content)
    optimizer = tree.get("optimizer") if isinstance(tree, dict) else None
    if not isinstance(optimizer, dict) or not isinstance(optimizer.get("target"), dict):
        raise ConversionError(f"{file} is not a T5X checkpoint: it has no optimizer/target.")
    tree.update(tree.pop("optimizer"))
    tree.pop("version", None)
    with damaged(file):
        found = {name: leaf for name, leaf in leaves(tree, _is_zarr) if leaf is not None}
        folders = {name: _directory(name, leaf) for name, leaf in found.items() if _is_zarr(leaf)}
    stored = _Arrays(path, set(folders.values()))
    tensors = {}
    for name, leaf in found.items():
        with damaged(file, f"is damaged: {name}"):
            if name in folders:
                tensors[name] = _zarr(stored, name, leaf, folders[name])
            elif isinstance(leaf, Array):
                in_file = functools.partial(np.frombuffer, content, np.uint8)
                tensors[name] = leaf.tensor(name, in_file, str(file))
            elif (array := np.asarray(leaf)).dtype.kind in "biuf":
                tensors[name] = array_tensor(name, array, str(file))
            else:
                raise ValueError(f"it has type {array.dtype}")
    return Checkpoint(path, "t5x-zarr", step, tensors)


def _is_zarr(leaf: Any) -> bool:
    """Returns whether a leaf of the msgpack file describes a zarr array."""
    return isinstance(leaf, Mapping) and isinstance(leaf.get("driver"), str) and "kvstore" in leaf


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
