"""Checks that arrays fit into the devices' memory, before allocating them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from mtf.errors import UserError
from mtf.host_memory import gib, total_bytes


def num_bytes(shapes: Any, shardings: Any = None) -> int:
    """Returns the bytes of a tree of arrays or, with shardings, of one device's part."""

    def size(x: Any, sharding: Any = None) -> int:
        shape = x.shape if sharding is None else sharding.shard_shape(x.shape)
        return math.prod(shape) * x.dtype.itemsize

    trees = (shapes,) if shardings is None else (shapes, shardings)
    return sum(jax.tree.leaves(jax.tree.map(size, *trees)))


def device_bytes(devices: Sequence[Any]) -> int | None:
    """Returns the memory of each device here, for a CPU its share of the machine; None: unknown."""
    if devices[0].platform != "cpu":
        return (devices[0].memory_stats() or {}).get("bytes_limit")
    return total_bytes() // len(devices)


def check(mesh: Mesh, needed: Mapping[str, int]) -> None:
    """Refuses, with UserError, what exceeds the memory of a device; `needed` is use → bytes."""
    available, total = device_bytes(mesh.local_devices), sum(needed.values())
    if available is not None and total > available:
        parts = ", ".join(f"{what} {count:,}" for what, count in needed.items())
        devices = f"{mesh.size} × {mesh.local_devices[0].device_kind}"
        raise UserError(
            f"At least {total:,} bytes ({gib(total)}) are needed on each device ({devices}), but "
            f"only {available:,} ({gib(available)}) are available. Bytes needed: {parts}. Use a "
            "smaller model or batch, more microbatches (trainer.num_microbatches), or more devices "
            "(partitioner.fsdp, partitioner.num_partitions)."
        )
