"""Opens the Orbax checkpoints of mtf and T5X, which store zarr arrays in an OCDBT database."""

from __future__ import annotations

import json
from typing import Any

import tensorstore as ts

from conversion.scanned import is_stacked, new_cache
from conversion.tensor import (
    Checkpoint,
    ConversionError,
    IncompleteCheckpoint,
    damaged,
    zarr_tensor,
)
from mtf.storage import AnyPath, kvstore

# In object stores, where directories cannot be renamed, Orbax creates this file last.
COMMITTED = "commit_success.txt"


def is_state(path: AnyPath) -> bool:
    """Returns whether `path` is a directory in which Orbax stores a tree of arrays."""
    return (path / "manifest.ocdbt").is_file() or (path / "_METADATA").is_file()


def find(path: AnyPath) -> AnyPath | None:
    """Returns the path of a checkpoint, given this path or that of its directory `state`."""
    if path.name == "state" and is_state(path):
        return path.parent
    return path if _in_state(path) or is_state(path) else None


def _in_state(path: AnyPath) -> bool:
    return (path / "state").is_dir() or is_state(path / "state")


def is_committed(checkpoint: AnyPath) -> bool:
    """Returns whether a checkpoint in an object store is complete.

    Orbax writes `commit_success.txt` last. A checkpoint that was uploaded from a file system may
    lack this file, but its metadata then contains the time of the commit.
    """
    if (checkpoint / COMMITTED).is_file():
        return True
    try:
        metadata = json.loads((checkpoint / "_CHECKPOINT_METADATA").read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(metadata, dict) and metadata.get("commit_timestamp_nsecs") is not None


def open_orbax(path: AnyPath, step: int | None) -> Checkpoint:
    """Opens a checkpoint, whose arrays are in `path` itself or in its directory `state`.

    Raises ConversionError if the checkpoint is incomplete, or does not use OCDBT and zarr 2.
    """
    state = path / "state" if _in_state(path) else path
    if not (state / "_METADATA").is_file():
        raise IncompleteCheckpoint(f"{path} is incomplete: {state.name}/_METADATA is missing.")
    with damaged(state / "_METADATA", "is damaged"):
        metadata = json.loads((state / "_METADATA").read_bytes())
        leaves = [
            [str(key["key"]) for key in leaf["key_metadata"]]
            for leaf in metadata["tree_metadata"].values()
            if not leaf["value_metadata"].get("skip_deserialize")  # an empty dict or None
        ]
        names = {".".join(keys): "/".join(keys) for keys in leaves}
    if metadata.get("use_zarr3") or not metadata.get("use_ocdbt", True):
        raise ConversionError(
            f"{path} was stored by Orbax as "
            f"{'zarr 3' if metadata.get('use_zarr3') else 'plain directories'}; "
            "expected OCDBT with zarr 2 (use_ocdbt=True, use_zarr3=False)."
        )
    if not (state / "manifest.ocdbt").is_file():
        raise IncompleteCheckpoint(f"{path} is incomplete: {state.name}/manifest.ocdbt is missing.")

    base = kvstore(state)
    arrays = _read_descriptions(path, {"driver": "ocdbt", "base": base})
    missing = sorted(names.keys() - arrays.keys())
    if missing:
        raise IncompleteCheckpoint(
            f"{path} is incomplete: {len(missing)} of {len(names)} arrays are missing "
            f"({', '.join(missing[:3])}{', …' if len(missing) > 3 else ''})."
        )
    all_stored = metadata.get("store_array_data_equal_to_fill_value", True)
    tensors, stacked = {}, new_cache()
    for dotted, name in names.items():
        array = {"driver": "ocdbt", "base": base, "path": f"{dotted}/"}
        cache = stacked if is_stacked(name) else None
        tensors[name] = zarr_tensor(
            name, *arrays[dotted], array, str(path), all_chunks_stored=all_stored, cache=cache
        )
    return Checkpoint(path, "orbax", step, tensors)


def _read_descriptions(path: AnyPath, spec: dict[str, Any]) -> dict[str, tuple[bytes, set[str]]]:
    """Returns a dict mapping dotted names to (content of `.zarray`, keys of chunks) pairs."""
    with damaged(path, "cannot be read; files are missing or truncated"):
        database = ts.KvStore.open(spec).result()
        keys = [key.decode() for key in database.list().result()]
        found = [key.removesuffix("/.zarray") for key in keys if key.endswith("/.zarray")]
        reads = {name: database.read(f"{name}/.zarray") for name in found}
        arrays = {name: (read.result().value, set[str]()) for name, read in reads.items()}
    for key in keys:
        name, _, file = key.partition("/")
        if name in arrays:
            arrays[name][1].add(file)
    return arrays
