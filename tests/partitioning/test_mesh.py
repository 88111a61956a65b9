"""Where arrays lie on a mesh, and which rows a process reads."""

from __future__ import annotations

import dataclasses

import jax
import pytest
from jax.sharding import PartitionSpec

from mtf.errors import UserError
from mtf.partitioning.config import LOGICAL_AXIS_RULES, PjitPartitioner
from mtf.partitioning.mesh import Partitioning, _blocks, partition_spec


def spec(axes: tuple[str, ...], shape: tuple[int, ...], **mesh: int) -> PartitionSpec:
    return partition_spec(axes, shape, mesh, LOGICAL_AXIS_RULES)


def test_parameters_are_split_over_fsdp_and_model() -> None:
    assert spec(("embed", "mlp"), (64, 128), data=2, fsdp=2, model=2) == PartitionSpec(
        "fsdp", "model"
    )
    assert spec(("vocab", "embed"), (128, 64), data=8, fsdp=1, model=1) == PartitionSpec(None, None)


def test_activations_are_split_by_batch_and_never_by_embed() -> None:
    assert spec(
        ("batch", "length", "embed"), (8, 16, 64), data=2, fsdp=2, model=2
    ) == PartitionSpec(("data", "fsdp"), None, None)


def test_a_dimension_that_the_mesh_does_not_divide_is_not_split() -> None:
    # T5 1.1 small has 6 heads.
    assert spec(("heads", "relpos_buckets"), (6, 32), data=1, fsdp=1, model=4) == PartitionSpec(
        None, None
    )


def test_mesh_shape_of_the_devices() -> None:
    assert PjitPartitioner(num_partitions=4, fsdp=2).mesh_shape(16) == (2, 2, 4)
    assert PjitPartitioner(model_parallel_submesh=(2, 2, 1, 2)).mesh_shape(512) == (64, 1, 8)
    with pytest.raises(UserError, match="multiple of fsdp × num_partitions = 1 × 3 = 3 devices"):
        PjitPartitioner(num_partitions=3).mesh_shape(8)
    with pytest.raises(UserError, match="has 4 devices, but num_partitions is 8"):
        PjitPartitioner(num_partitions=8, model_parallel_submesh=(2, 2, 1, 1))


@dataclasses.dataclass(frozen=True)
class FakeTpu:
    coords: tuple[int, int, int]
    core_on_chip: int


def test_a_submesh_is_a_block_of_the_torus() -> None:
    devices = [FakeTpu((x, y, 0), c) for x in range(4) for y in range(4) for c in range(2)]
    blocks = _blocks(devices, (2, 2, 1, 2))
    assert blocks.shape == (4, 8)
    for block in blocks:
        for axis, size in enumerate((2, 2, 1)):
            places = {device.coords[axis] for device in block}
            assert len(places) == size and max(places) - min(places) == size - 1
        assert {device.core_on_chip for device in block} == {0, 1}
    assert set(blocks.reshape(-1)) == set(devices)
    with pytest.raises(UserError, match=r"does not divide the devices' torus \(4, 4, 1, 2\)"):
        _blocks(devices, (3, 1, 1, 1))


def test_batches_that_the_mesh_does_not_divide_are_refused() -> None:
    partitioning = Partitioning.create(PjitPartitioner(), jax.devices()[:1])
    partitioning.check_batch_size(6, num_microbatches=3)
    with pytest.raises(UserError, match=r"batch_size 6 is not divisible.*Nearest: 4 or 8"):
        partitioning.check_batch_size(6, num_microbatches=4)
    assert partitioning.data_layout(6) == (0, 1)
