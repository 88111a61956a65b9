"""Checks that arrays fit into device memory before they are allocated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from mtf.base.errors import UserError
from mtf.base.host_memory import gib, total_bytes
from mtf.partitioning.chips import chip_of


def num_bytes(shapes: Any, shardings: Any = None) -> int:
    """Returns the size of all arrays in bytes, or the size per device if shardings are given."""

    def size(x: Any, sharding: Any = None) -> int:
        shape = x.shape if sharding is None else sharding.shard_shape(x.shape)
        return math.prod(shape) * x.dtype.itemsize

    trees = (shapes,) if shardings is None else (shapes, shardings)
    return sum(jax.tree.leaves(jax.tree.map(size, *trees)))


def device_bytes(devices: Sequence[Any]) -> int | None:
    """Returns the memory per device in bytes, or None if it is unknown.

    CPU devices have equal shares of the machine's memory. The memory of other devices is what JAX
    reports or, if it reports nothing, the memory of the chip.
    """
    if devices[0].platform == "cpu":
        return total_bytes() // len(devices)
    limit: int | None = (devices[0].memory_stats() or {}).get("bytes_limit")
    chip = chip_of(devices[0].device_kind)
    return chip.memory // chip.devices if limit is None and chip is not None else limit


def peak_bytes(compiled: Any, platform: str) -> int:
    """Returns the memory in bytes that a compiled program needs on each device."""
    sizes = compiled.memory_analysis()
    peak: int = getattr(sizes, "peak_memory_in_bytes", 0)
    # On CPUs, the peak that the compiler reports does not include temporaries.
    if platform == "cpu" or peak < sizes.argument_size_in_bytes:
        peak = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
        peak += sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return peak


def check(mesh: Mesh, needed: Mapping[str, int]) -> None:
    """Raises UserError if the devices have too little memory.

    `needed` maps each purpose, such as "parameters", to a number of bytes per device.
    """
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
