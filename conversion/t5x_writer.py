"""Writes checkpoints in T5X's two layouts: zarr with msgpack, and Orbax, which mtf also uses.

This module does not use T5X, Flax or Orbax, which import JAX and need whole arrays in memory.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import tensorstore as ts

from conversion.tensor import Tensor
from conversion.zarr_writer import chunk_shape, write_zarr, zarr_metadata
from mtf.storage import kvstore

# T5X's checkpoint version, in which bfloat16 parameters are not stored as uint16.
_VERSION = 3
# The level is TensorStore's default, which T5X does not change.
_GZIP = {"id": "gzip", "level": 1}
# Orbax's settings.
_ZSTD = {"id": "zstd", "level": 1}
_OCDBT = {"max_decoded_node_bytes": 100_000_000, "max_inline_value_bytes": 1024}
_BYTES_OF_COMMIT = 64 * 2**20
_COMMITTED = "Checkpoint commit was successful\n"
# flax.serialization's extension type for an array.
_NDARRAY = 1
_STATE_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"


def write_zarr_msgpack(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Writes the files of a `checkpoint_STEP` directory in T5X's layout with zarr and msgpack.

    As in T5X, each parameter, and each optimizer slot that has the same shape as its parameter, is
    stored as a zarr array in a separate directory. The other slots and the step are stored in the
    msgpack file.

    Args:
      tensors: dict mapping T5X's names ("target/…", "state/param_states/…/v_row", "state/step") to
        tensors.
      directory: an existing, empty directory.

    Raises:
      ConversionError: a tensor cannot be read or written.
    """
    leaves: dict[str, Any] = {}
    arrays: list[tuple[Tensor, dict[str, Any]]] = []
    for name in _ordered(tensors):
        tensor = tensors[name]
        if not _is_partitioned(name, tensors):
            leaves[name] = _extension(tensor.read())
            continue
        folder = name.replace("/", ".")
        (directory / folder).mkdir()
        arrays.append((tensor, kvstore(directory / folder)))
        leaves[name] = {
            "driver": "zarr",
            "dtype": tensor.dtype.name,
            "kvstore": {"driver": "file", "path": f"{folder}/"},
            "metadata": zarr_metadata(tensor, _GZIP),
        }
    write_zarr(arrays, _GZIP)
    content = msgpack.packb({"version": _VERSION, "optimizer": _nested(leaves)})
    (directory / "checkpoint").write_bytes(content)


def _extension(array: np.ndarray[Any, Any]) -> msgpack.ExtType:
    """Returns a msgpack extension of flax.serialization with an array's shape, dtype and bytes."""
    packed = msgpack.packb((array.shape, array.dtype.name, array.tobytes()))
    return msgpack.ExtType(_NDARRAY, packed)


def _is_partitioned(name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Returns whether T5X partitions a tensor and therefore stores it as zarr."""
    root, _, rest = name.partition("/")
    if root == "target":
        return True
    # Adafactor's slots are named param_states/PARAMETER/SLOT; the names of Optax's slots end with
    # PARAMETER.
    parts = rest.split("/")[1:]
    owners = ["/".join(parts[:-1]), *("/".join(parts[i:]) for i in range(len(parts)))]
    found = [tensors[f"target/{owner}"] for owner in owners if f"target/{owner}" in tensors]
    return any(owner.shape == tensors[name].shape for owner in found)


def _ordered(tensors: Mapping[str, Tensor]) -> list[str]:
    """Returns the names in the order in which JAX flattens nested dicts."""
    return sorted(tensors, key=lambda name: name.split("/"))


def _nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def write_orbax(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Writes the files of a `checkpoint_STEP` directory in the Orbax layout of T5X and mtf.

    The arguments and errors are the same as for `write_zarr_msgpack`.
    """
    start = time.time_ns()
    state = directory / "state"
    state.mkdir()
    _write_database(tensors, state)
    leaves: dict[str, Any] = {}
    arrays: list[dict[str, Any]] = []
    shardings: dict[str, str] = {}
    for name in _ordered(tensors):
        tensor, keys = tensors[name], name.split("/")
        shape = {"write_shape": list(tensor.shape)}
        leaves[str(tuple(keys))] = {
            "key_metadata": [{"key": key, "key_type": 2} for key in keys],  # 2: a dict key
            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False, **shape},
        }
        chunks = {"chunk_shape": chunk_shape(tensor.shape, tensor.dtype.itemsize)}
        described = {"param_name": _dotted(name), **shape, **chunks, "ext_metadata": None}
        arrays.append({"array_metadata": described})
        shardings[base64.b64encode(_dotted(name).encode()).decode()] = _sharding(tensor)
    _write_json(
        state / "_METADATA",
        {
            "tree_metadata": leaves,
            "use_ocdbt": True,
            "use_zarr3": False,
            "store_array_data_equal_to_fill_value": True,
            "custom_metadata": None,
        },
    )
    (state / "array_metadatas").mkdir()
    _write_json(state / "array_metadatas" / "process_0", {"array_metadatas": arrays})
    _write_json(state / "_sharding", shardings)
    (state / "commit_success.txt").write_text(_COMMITTED)
    _write_json(
        directory / "_CHECKPOINT_METADATA",
        {
            "item_handlers": {"state": _STATE_HANDLER},
            "metrics": {},
            "performance_metrics": {},
            "init_timestamp_nsecs": start,
            "commit_timestamp_nsecs": time.time_ns(),
            "custom_metadata": {},
        },
    )
    (directory / "commit_success.txt").write_text(_COMMITTED)


def _write_database(tensors: Mapping[str, Tensor], state: Path) -> None:
    """Writes the arrays to an OCDBT database.

    Small arrays are written in transactions of limited size, because TensorStore keeps a
    transaction in memory. Large arrays are written without a transaction.
    """
    context = ts.Context()
    database = {"driver": "ocdbt", "base": kvstore(state), "config": _OCDBT}
    commits: list[list[str]] = [[]]
    large: list[str] = []
    num_bytes = 0
    for name in _ordered(tensors):
        size = tensors[name].nbytes
        if size > _BYTES_OF_COMMIT:
            large.append(name)
            continue
        if num_bytes + size > _BYTES_OF_COMMIT:
            commits.append([])
            num_bytes = 0
        commits[-1].append(name)
        num_bytes += size

    def write(names: Sequence[str], transaction: ts.Transaction | None) -> None:
        located = ((tensors[x], {**database, "path": f"{_dotted(x)}/"}) for x in names)
        write_zarr(located, _ZSTD, context=context, transaction=transaction)

    write(large, None)
    for names in commits:
        transaction = ts.Transaction()
        write(names, transaction)
        transaction.commit_sync()


def _dotted(name: str) -> str:
    return name.replace("/", ".")


def _sharding(tensor: Tensor) -> str:
    """Returns the sharding, on one device, with which Orbax restores the tensor by default."""
    return json.dumps(
        {
            "sharding_type": "NamedSharding",
            "shape": [1, 1],
            "axis_names": ["data", "model"],
            "axis_types": ["AxisType.Auto", "AxisType.Auto"],
            "partition_spec": [None] * len(tensor.shape),
            "device_mesh": {"mesh": [[{"id": 0}]]},
        }
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))
