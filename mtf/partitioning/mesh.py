"""Creates device meshes, and maps logical axes to shardings."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from mtf.base import malloc
from mtf.base.errors import UserError, nearest_multiples
from mtf.partitioning.compiled import keep_compiled_programs
from mtf.partitioning.settings import (
    LOGICAL_AXIS_RULES,
    MESH_AXES,
    PartitionerConfig,
    Rules,
    mesh_axes,
)

_AXIS_TYPES = (AxisType.Auto,) * len(MESH_AXES)


def _blocks(devices: Sequence[Any], submesh: tuple[int, int, int, int]) -> np.ndarray:
    """Splits a TPU torus into blocks of shape `submesh`; each row of the result is one block."""
    places = [(*device.coords, device.core_on_chip) for device in devices]
    size = tuple(max(place[axis] for place in places) + 1 for axis in range(4))
    if math.prod(size) != len(devices) or any(n % b for n, b in zip(size, submesh, strict=True)):
        raise UserError(
            f"partitioner.model_parallel_submesh {submesh} does not divide the devices' torus "
            f"{size} (x, y, z, cores)."
        )
    torus = np.empty(size, dtype=object)
    for place, device in zip(places, devices, strict=True):
        torus[place] = device
    split = [part for n, b in zip(size, submesh, strict=True) for part in (n // b, b)]
    blocks = torus.reshape(split).transpose(0, 2, 4, 6, 1, 3, 5, 7)
    return blocks.reshape(-1, math.prod(submesh))


def partition_spec(
    axes: Sequence[str | None], shape: Sequence[int], mesh_shape: Mapping[str, int], rules: Rules
) -> PartitionSpec:
    """Returns the PartitionSpec of an array, given the logical axes of its dimensions.

    As in flax (`flax.linen.logical_to_mesh_axes`), rules are applied in order. A rule assigns its
    mesh axes to the dimension of its logical axis, unless that dimension already has mesh axes or a
    mesh axis of the rule is already used. Unlike in flax, the dimension must be evenly divisible.
    """
    decided: dict[int, tuple[str, ...]] = {}
    taken: set[str] = set()
    for rule, wanted in rules:
        names = mesh_axes(wanted)
        parts = math.prod(mesh_shape.get(name, 1) for name in names)
        for dim, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            if axis == rule and dim not in decided and not size % parts and not taken & {*names}:
                decided[dim] = tuple(name for name in names if mesh_shape.get(name, 1) > 1)
                taken.update(names)
    spec = [decided.get(dim, ()) for dim in range(len(axes))]
    return PartitionSpec(*(names[0] if len(names) == 1 else names or None for names in spec))


def _hashable_rules(partitioner: PartitionerConfig) -> Rules:
    return tuple((name, mesh_axes(wanted)) for name, wanted in partitioner.logical_axis_rules)


# The current rules are part of JAX's context, because compiled programs depend on them.
_rules_in_force = jax.make_user_context(LOGICAL_AXIS_RULES)


def activation_spec(shape: Sequence[int], *axes: str | None) -> PartitionSpec:
    """Returns the PartitionSpec of an activation by the current mesh and the current rules."""
    mesh = jax.sharding.get_abstract_mesh()
    return partition_spec(axes, shape, mesh.shape, _rules_in_force.value)


def current_platform() -> str:
    """Returns the platform of the current mesh, or JAX's default if there is no current mesh."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Constrains the sharding of an activation by the current rules, if there is a current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, activation_spec(x.shape, *axes))


def devices_keeping_memory() -> list[Any]:
    """Returns `jax.devices()`; keeps compiled programs and, on CPUs, freed memory.

    This function must be called before JAX's backend is initialized, because the backend starts
    threads. Raises UserError if JAX cannot use the devices that JAX_PLATFORMS names.
    """
    malloc.use_one_arena()
    keep_compiled_programs()
    try:
        devices = jax.devices()
    except RuntimeError as error:
        raise UserError(f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}: {error}") from None
    if devices[0].platform == "cpu":
        malloc.keep_freed_memory()
    return devices


@dataclasses.dataclass(frozen=True)
class PjitPartitioner:
    """A mesh and logical axis rules, which together define the shardings of a run."""

    mesh: Mesh
    rules: Rules

    @classmethod
    def create(
        cls, partitioner: PartitionerConfig, devices: Sequence[Any] | None = None
    ) -> PjitPartitioner:
        """Returns a partitioner for `devices`, by default all devices."""
        devices = devices_keeping_memory() if devices is None else devices
        shape = partitioner.mesh_shape(len(devices))
        submesh = partitioner.model_parallel_submesh
        if submesh is not None and hasattr(devices[0], "coords"):
            grid = _blocks(devices, submesh).reshape(shape)
        else:
            grid = mesh_utils.create_device_mesh(
                shape, devices=devices, allow_split_physical_axes=True
            )
        return cls(Mesh(grid, MESH_AXES, axis_types=_AXIS_TYPES), _hashable_rules(partitioner))

    @classmethod
    def create_abstract(cls, partitioner: PartitionerConfig, num_devices: int) -> PjitPartitioner:
        """Returns a partitioner that computes shardings for devices that need not exist."""
        mesh: Any = AbstractMesh(
            partitioner.mesh_shape(num_devices), MESH_AXES, axis_types=_AXIS_TYPES
        )
        return cls(mesh, _hashable_rules(partitioner))

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Makes computations in the `with` block use this mesh and these rules."""
        with jax.set_mesh(self.mesh), _rules_in_force(self.rules):
            yield

    def sharding(self, axes: Sequence[str | None], shape: Sequence[int]) -> NamedSharding:
        """Returns the sharding of an array, given the logical axes of its dimensions."""
        return NamedSharding(self.mesh, partition_spec(axes, shape, self.mesh.shape, self.rules))

    @functools.cached_property
    def batch_axes(self) -> tuple[str, ...]:
        """The mesh axes over which a batch is split."""
        # 0 is divisible by any number of devices; `check_batch_size` checks the real size.
        return mesh_axes(partition_spec(("batch",), (0,), self.mesh.shape, self.rules)[0])

    @functools.cached_property
    def num_data_shards(self) -> int:
        """The number of parts into which a batch is split."""
        return math.prod(self.mesh.shape[axis] for axis in self.batch_axes)

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of a fully replicated array."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch(self) -> NamedSharding:
        """The sharding of a batch, which the standard rules split over the data and fsdp axes."""
        return NamedSharding(self.mesh, PartitionSpec(self.batch_axes))

    def shardings(self, shapes: Any, axes: Any) -> Any:
        """Returns the tree of shardings for a tree of shapes and a tree of logical axes."""
        return jax.tree.map(lambda shape, names: self.sharding(names, shape.shape), shapes, axes)

    def check_batch_size(self, batch_size: int, num_microbatches: int = 1) -> None:
        """Raises UserError if the batch cannot be split evenly into shards and microbatches."""
        parts = self.num_data_shards * num_microbatches
        if batch_size % parts:
            microbatches = f" × {num_microbatches} microbatches" if num_microbatches > 1 else ""
            axes = " × ".join(f"{axis} {self.mesh.shape[axis]}" for axis in self.batch_axes)
            axes = f" ({axes})" if axes else ""
            raise UserError(
                f"batch_size {batch_size} cannot be divided evenly among {self.num_data_shards} "
                f"data shards{axes}{microbatches}. Nearest: {nearest_multiples(batch_size, parts)}."
            )

    def data_layout(self, batch_size: int) -> tuple[int, int]:
        """Returns (shard_id, num_shards) for the part of each global batch that this process reads.

        Processes whose devices differ only along the model axis read the same part.
        """
        parts = self.batch.addressable_devices_indices_map((batch_size,)).values()
        rows = [index[0].indices(batch_size) for index in parts if index is not None]
        low, high = min(start for start, _, _ in rows), max(stop for _, stop, _ in rows)
        size = high - low
        if batch_size % size or low % size:
            raise UserError(
                f"The mesh gives process {jax.process_index()} the rows {low} to {high - 1} of a "
                f"batch of {batch_size} rows, which is not an equal share. Set partitioner.fsdp "
                "and partitioner.num_partitions so that all processes read equal parts."
            )
        return low // size, batch_size // size

    def global_batch(self, rows: Mapping[str, np.ndarray], batch_size: int) -> dict[str, jax.Array]:
        """Returns global arrays assembled from the rows of each process, without communication."""
        make = functools.partial(jax.make_array_from_process_local_data, self.batch)
        return {name: make(x, (batch_size, *x.shape[1:])) for name, x in rows.items()}
