"""Times of a plan, compared with times that are known: those of single operations and of T5X.

Nothing runs: the programs are compiled for devices that are not here.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mtf.cli.plan import hlo, work
from mtf.cli.plan.child import _devices_of
from mtf.cli.plan.command import _VARIABLES, main
from mtf.cli.plan.targets import parse_target

needs_libtpu = pytest.mark.skipif(
    not importlib.util.find_spec("libtpu"), reason="libtpu is not installed (mtf-jax[tpu])"
)
needs_cuda = pytest.mark.skipif(
    not importlib.util.find_spec("jax_cuda12_plugin"), reason="jax-cuda12-plugin is not installed"
)


def measured(
    monkeypatch: pytest.MonkeyPatch, name: str, function: Callable[..., jax.Array], *shapes: Any
) -> dict[str, Any]:
    """The work of a function of bfloat16 arrays, compiled for one device of a target."""
    for variable, value in _VARIABLES.items():
        monkeypatch.setenv(variable, value)
    target = parse_target(name)
    mesh = Mesh(np.array(_devices_of(target)[:1]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec())
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding) for shape in shapes]
    text = jax.jit(function).lower(*arrays).compile().as_text()
    return work.measure(hlo.parse(text), mesh.shape, [0], target.chip)


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "peak", "bandwidth"), [("v4:2x2x1", 275e12, 1200e9), ("v5e:2x2", 197e12, 819e9)]
)
def test_large_operations_take_what_the_chip_is_known_for(
    monkeypatch: pytest.MonkeyPatch, target: str, peak: float, bandwidth: float
) -> None:
    shapes = ((8192, 4096), (4096, 4096))
    times = measured(monkeypatch, target, jnp.matmul, *shapes)["times"]
    known = 2 * 8192 * 4096 * 4096 / peak
    assert times["at_least"] == pytest.approx(known, rel=0.03)
    # XLA's own estimate of a large product is known to be close.
    assert known <= times["estimate"] <= 1.15 * known
    times = measured(monkeypatch, target, jnp.add, *[(32768, 4096)] * 2)["times"]
    assert times["at_least"] == pytest.approx(3 * 2 * 32768 * 4096 / bandwidth, rel=0.03)


@needs_libtpu
@pytest.mark.slow
def test_a_pallas_kernel_counts_as_its_cost_estimate_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] + y[...]

    def add(x: jax.Array, y: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            cost_estimate=pl.CostEstimate(
                flops=275_000_000_000, transcendentals=0, bytes_accessed=1_200_000
            ),
        )(x, y)

    found = measured(monkeypatch, "v4:2x2x1", add, (512, 256), (512, 256))
    assert found["flops"] == 275e9
    assert found["times"]["at_least"] == pytest.approx(1e-3, rel=0.01)


def plan(capsys: pytest.CaptureFixture[str], target: str, *settings: str) -> dict[str, Any]:
    """A plan of T5 1.1 large."""
    assert main(["recipes.t5_1_1_large_c4", "--target", target, "--json", "--set", *settings]) == 0
    return dict(json.loads(capsys.readouterr().out))


@needs_cuda
@pytest.mark.slow
def test_less_recomputation_needs_as_much_memory_as_estimated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    layers = [f"model.network.num_{side}_layers=4" for side in ("encoder", "decoder")]
    full, minimal = (
        plan(capsys, "h100:1x1", *layers, f"model.network.remat_policy={policy}")
        for policy in ("full", "minimal")
    )
    assert minimal["with_minimal_remat"] is None
    assert minimal["flops"] < 0.85 * full["flops"]
    assert full["with_minimal_remat"] == pytest.approx(minimal["needed_bytes"], rel=0.1)


@needs_cuda
@pytest.mark.slow
def test_t5_large_takes_as_long_as_published_for_t5x_on_a100s(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # NVIDIA's T5X (github.com/NVIDIA/JAX-Toolbox, rosetta/rosetta/projects/t5x/README.md, and T5X's
    # t5x/contrib/gpu/t5/t5_1_1/examples/large_pile_pretrain.gin): T5 1.1 large in bfloat16 on 64
    # A100, 32 rows of 512 and 128 tokens and 75.8 rows/s on each, with AdamW and no dropout.
    schedule = "@mtf.builders.schedule.constant(learning_rate=1e-4)"
    settings = (
        "batch_size=2048",
        "data.task_feature_lengths.targets=128",
        f"optimizer=@mtf.training.AdamWConfig(learning_rate={schedule})",
    )
    assert plan(capsys, "a100:8x8", *settings)["times"]["at_least"] == pytest.approx(
        32 / 75.8, rel=0.25
    )
