"""Where arrays lie on a mesh, and which rows a process reads."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import pytest
from flax.linen import logical_to_mesh_axes
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from mtf.base.errors import UserError
from mtf.models import t5
from mtf.models.settings import T5Config
from mtf.partitioning.mesh import PjitPartitioner, _blocks, _rules_in_force, partition_spec
from mtf.partitioning.settings import (
    FULLY_SHARDED_AXIS_RULES,
    LOGICAL_AXIS_RULES,
    MESH_AXES,
    PartitionerConfig,
    mesh_axes,
)


def spec(axes: tuple[str, ...], shape: tuple[int, ...], **mesh: int) -> tuple[Any, ...]:
    return tuple(partition_spec(axes, shape, mesh, LOGICAL_AXIS_RULES))


def test_where_parameters_and_activations_are_split() -> None:
    assert spec(("embed", "mlp"), (64, 128), data=2, fsdp=2, model=2) == ("fsdp", "model")
    assert spec(("vocab", "embed"), (128, 64), data=8, fsdp=1, model=1) == (None, None)
    activations = spec(("batch", "length", "embed"), (8, 16, 64), data=2, fsdp=2, model=2)
    assert activations == (("data", "fsdp"), None, None)
    # A dimension that the mesh does not divide is not split: T5 1.1 small has 6 heads.
    assert spec(("heads", "relpos_buckets"), (6, 32), data=1, fsdp=1, model=4) == (None, None)


AXES = ("batch", "length", "vocab", "embed", "mlp", "heads", "joined_kv", "kv", "layers")


@settings(max_examples=200, deadline=None)
@given(
    axes=st.permutations(AXES).flatmap(lambda a: st.integers(1, 4).map(lambda n: tuple(a[:n]))),
    rules=st.lists(
        st.tuples(
            st.sampled_from(AXES),
            st.sampled_from(
                [None, "data", "fsdp", "model", ("data", "fsdp"), ("fsdp", "model"), ("model",)]
            ),
        ),
        max_size=12,
    ).map(tuple),
)
def test_rules_mean_what_they_mean_in_flax(axes: tuple[str, ...], rules: Any) -> None:
    ours = partition_spec(axes, (64,) * len(axes), {"data": 2, "fsdp": 2, "model": 2}, rules)
    theirs = [
        (axis,) if isinstance(axis, str) else axis for axis in logical_to_mesh_axes(axes, rules)
    ]
    assert [mesh_axes(axis) for axis in ours] == [mesh_axes(axis) for axis in theirs]


# multilingual-t0's tasks.fully_sharded_logical_axis_rules.
MT0_RULES = (
    ("batch", "data"),
    ("vocab", "model"),
    ("mlp", "model"),
    ("heads", "model"),
    ("joined_kv", "model"),
    ("kv", None),
    ("embed", "model"),
    ("embed", "data"),
    ("relpos_buckets", None),
    ("length", None),
    ("layers", None),
    ("stack", None),
)


@pytest.mark.parametrize(
    "axes",
    [
        *(("vocab", "embed"), ("embed", "mlp"), ("mlp", "embed"), ("embed", "joined_kv")),
        *(("joined_kv", "embed"), ("layers", "embed", "mlp"), ("embed",), ("embed", "vocab")),
        *(("heads", "relpos_buckets"), ("batch", "length", "embed"), ("batch", "length", "vocab")),
        *(("batch", "length", "mlp"), ("batch", "length", "heads", "kv")),
    ],
)
def test_fully_sharded_rules_are_mt0s(axes: tuple[str, ...]) -> None:
    mesh = {"data": 16, "fsdp": 1, "model": 4}
    ours = partition_spec(axes, (64,) * len(axes), mesh, FULLY_SHARDED_AXIS_RULES)
    assert ours == PartitionSpec(*logical_to_mesh_axes(axes, MT0_RULES))


def test_a_rule_that_does_not_divide_the_dimension_is_passed_over() -> None:
    rules = (("heads", "model"), ("heads", "fsdp"), ("kv", "model"))
    mesh = {"data": 1, "fsdp": 2, "model": 4}
    assert partition_spec(("heads", "kv"), (6, 64), mesh, rules) == PartitionSpec("fsdp", "model")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (("mlp", "modle"), r"\('mlp', 'modle'\): 'modle' is not a mesh axis.*mean model\?"),
        (("batch", ("data", "replica")), "'replica' is not a mesh axis; expected data, fsdp"),
        (("head", "model"), r"'head' is not a logical axis; expected one of batch.*mean heads\?"),
        (("batch", ("data", "data")), "the rule contains a mesh axis twice"),
    ],
)
def test_rules_with_unknown_names_are_refused(rule: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"logical_axis_rules: .*{message}"):
        PartitionerConfig(logical_axis_rules=(*LOGICAL_AXIS_RULES, rule))


def constraints(rules: Any) -> set[str]:
    """How a network's activations are pinned on a mesh of 2 × 2 × 2, by these rules."""
    network = T5Config(64, 16, 4, 8, 1, 1, 32, dropout_rate=0.0, scan_layers=False)
    tokens = jax.ShapeDtypeStruct((8, 4), "int32")
    names = ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")

    def apply(params: Any, batch: Any) -> Any:
        return t5.apply(network, params, batch)

    mesh = AbstractMesh((2, 2, 2), MESH_AXES, axis_types=(AxisType.Auto,) * 3)
    with jax.sharding.use_abstract_mesh(mesh), _rules_in_force(rules):
        jaxpr = jax.make_jaxpr(apply)(t5.param_shapes(network), dict.fromkeys(names, tokens))
    return {
        str(eqn.params["sharding"].spec)
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "sharding_constraint"
    }


def test_activations_follow_the_rules_given() -> None:
    spec = functools.partial(PartitionSpec, ("data", "fsdp"), None)
    assert constraints(LOGICAL_AXIS_RULES) == {
        *(str(spec(last)) for last in (None, "model")),
        str(PartitionSpec("model", None)),  # the embedding's rows
    }
    rules = (("batch", "data"), ("mlp", "fsdp"), ("vocab", ("fsdp", "model")), ("length", "model"))
    assert constraints(rules) == {
        str(PartitionSpec("data", "model", None)),
        str(PartitionSpec("data", "model", "fsdp")),
        str(PartitionSpec(("fsdp", "model"), None)),
        str(PartitionSpec("data", None, ("fsdp", "model"))),
    }


def test_batches_follow_the_rules_given() -> None:
    mesh = AbstractMesh((2, 4, 1), MESH_AXES)
    for batch, axes, parts in ((("data", "fsdp"), ("data", "fsdp"), 8), ("data", "data", 2)):
        partitioner = PjitPartitioner(mesh, (("batch", batch),))  # type: ignore[arg-type]
        assert partitioner.num_data_shards == parts
        assert partitioner.batch.spec == PartitionSpec(axes)
        with pytest.raises(UserError, match=f"among {parts} data shards .*Nearest: {parts} or"):
            partitioner.check_batch_size(parts + 1)


def test_mesh_shape_of_the_devices() -> None:
    assert PartitionerConfig(num_partitions=4, fsdp=2).mesh_shape(16) == (2, 2, 4)
    assert PartitionerConfig(model_parallel_submesh=(2, 2, 1, 2)).mesh_shape(512) == (64, 1, 8)
    with pytest.raises(UserError, match="multiple of fsdp × num_partitions = 1 × 3 = 3 devices"):
        PartitionerConfig(num_partitions=3).mesh_shape(8)
    with pytest.raises(UserError, match="spans 4 devices, but num_partitions is 8"):
        PartitionerConfig(num_partitions=8, model_parallel_submesh=(2, 2, 1, 1))


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
    partitioner = PjitPartitioner.create(PartitionerConfig(), jax.devices()[:1])
    partitioner.check_batch_size(6, num_microbatches=3)
    with pytest.raises(UserError, match=r"batch_size 6 cannot be divided evenly.*Nearest: 4 or 8"):
        partitioner.check_batch_size(6, num_microbatches=4)
    assert partitioner.data_layout(6) == (0, 1)
