"""The attention kernels, interpreted on CPUs, have the values of the formula in float64."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from mtf.base.errors import UserError
from mtf.models import flash_attention as flash
from mtf.models.flash_attention import bias_rows, flash_attention, is_used
from mtf.models.settings import T5Config
from mtf.partitioning.settings import MESH_AXES
from tests.conftest import with_devices
from tests.golden import cases
from tests.golden.engine import Engine
from tests.small import python

NUM_CASES, NUM_FAST = 40, 3
LENGTHS = (128, 256, 384, 512, 640, 1024, 1536, 2048)
KINDS = ("packed", "padded", "with empty rows")
NAMES = ("output", "query", "key", "value", "bias")
Values = dict[str, np.ndarray]


def segments(random: np.random.Generator, kind: str, rows: int, length: int) -> np.ndarray:
    """Segment ids with padding at the end of rows; the last row may be empty."""
    cuts = np.sort(random.integers(1, length, (rows, 4)), axis=1)
    ids = 1 + np.sum(np.arange(length)[:, None] >= cuts[:, None], axis=2)
    ids = np.where(ids == 5, 0, ids if kind == "packed" else 1).astype(np.int32)
    if kind == "with empty rows":
        ids[-1] = 0
    return ids


def formula(
    x: Values, mask: np.ndarray, bias: np.ndarray, scales: np.ndarray
) -> tuple[np.ndarray, ...]:
    """The output and the gradients, all (b, h, length, d), but that of the bias, (h, q, k)."""
    query, key, value, d_y = (
        x[name].astype(np.float64) for name in ("query", "key", "value", "d_y")
    )
    logits = np.where(mask, query @ key.swapaxes(2, 3) + bias, -1e10)
    weights = np.exp(logits - logits.max(3, keepdims=True))
    weights /= weights.sum(3, keepdims=True)
    dropped = weights * scales
    d_weights = d_y @ value.swapaxes(2, 3) * scales
    mean = np.sum(weights * d_weights, axis=3, keepdims=True)
    d_logits = np.where(mask, weights * (d_weights - mean), 0.0)
    d_key = d_logits.swapaxes(2, 3) @ query
    return dropped @ value, d_logits @ key, d_key, dropped.swapaxes(2, 3) @ d_y, d_logits.sum(0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "case", [pytest.param(i, marks=[pytest.mark.slow] * (i >= NUM_FAST)) for i in range(NUM_CASES)]
)
def test_values_and_gradients_are_those_of_the_formula(case: int, dtype: str) -> None:
    random = np.random.default_rng(case)
    attends_to, kind = ("itself", "before", "inputs")[case % 3], KINDS[case // 3 % 3]
    lengths = LENGTHS[: 3 if case < NUM_FAST else None]
    num_queries, num_keys = (int(n) for n in random.choice(lengths, 2))
    if attends_to != "inputs":
        num_keys = num_queries
    head_dim, rows = (64, 128)[case % 2], 2
    heads = int(random.integers(1, 3)) * 128 // head_dim
    sizes = {"query": num_queries, "key": num_keys, "value": num_keys, "d_y": num_queries}
    x = {name: random.normal(size=(rows, heads, n, head_dim)) for name, n in sizes.items()}
    x["query"] *= head_dim**-0.5
    rounded = {name: jnp.asarray(value, dtype) for name, value in x.items()}
    x = {name: np.asarray(value, np.float32) for name, value in rounded.items()}
    ids = [segments(random, kind, rows, n) for n in (num_queries, num_keys)]
    has_bias = attends_to != "inputs" or case % 4 == 0
    if attends_to != "inputs":
        ids[1] = ids[0]
    mask = (ids[0][:, None, :, None] == ids[1][:, None, None]) & (ids[1] > 0)[:, None, None]
    if attends_to == "before":
        mask &= np.tri(num_queries, dtype=bool)
    by_distance = random.normal(size=(heads, num_queries + num_keys)).astype(np.float32)
    place = np.arange(num_queries)[:, None] - np.arange(num_keys) + num_keys - 1
    has_dropout = case // 2 % 2 == 1
    scales = (random.random((rows, heads, num_keys)) > 0.1).astype(np.float32) / np.float32(0.9)
    expected = formula(
        *(x, mask, by_distance[:, place] if has_bias else np.zeros(1)),
        scales[:, :, None] if has_dropout else np.ones(1),
    )

    def joined(y: jax.Array) -> jax.Array:
        return y.swapaxes(1, 2).reshape(rows, y.shape[2], -1)

    @jax.jit
    def ours(x: dict[str, jax.Array], bias: jax.Array) -> tuple[jax.Array, ...]:
        def attend(*arrays: jax.Array) -> jax.Array:
            made = bias_rows(arrays[3], head_dim, causal=attends_to == "before")
            options = made if has_bias else None, scales if has_dropout else None
            return flash_attention(*arrays[:3], *ids, *options, head_dim)

        arrays = (*(joined(x[name]) for name in ("query", "key", "value")), bias)
        y, pull = jax.vjp(attend, *arrays)
        return y, *pull(joined(x["d_y"]))

    found = [np.asarray(y, np.float64) for y in ours(rounded, jnp.asarray(by_distance))]
    for name, y, wanted in zip(NAMES[:4], found, expected, strict=False):
        split = y.reshape(rows, -1, heads, head_dim).swapaxes(1, 2)
        assert_near(split, wanted, dtype, name)
    if has_bias:
        summed = np.zeros_like(by_distance, np.float64)
        np.add.at(summed, (slice(None), place), expected[4])
        assert_near(found[4], summed, dtype, "bias")


def assert_near(found: np.ndarray, expected: np.ndarray, dtype: str, name: str) -> None:
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < {"float32": 1e-6, "bfloat16": 1e-2}[dtype], f"{name}: {error:.1e}"


@pytest.mark.slow
def test_fifty_steps_have_the_losses_of_the_formula() -> None:
    devices = {"XLA_FLAGS": with_devices(4), "JAX_PLATFORMS": "cpu"}
    done = python("-m", "tests.models.kernel_losses", **devices)
    expected, one_device, mesh = json.loads(done.stdout)
    assert len(set(expected)) == 50
    np.testing.assert_allclose(one_device, expected, rtol=1e-5)
    np.testing.assert_allclose(mesh, expected, rtol=1e-5)


SIZES = {"vocab_size": 8, "emb_dim": 8, "num_encoder_layers": 1, "num_decoder_layers": 1}


@pytest.mark.parametrize(
    ("num_heads", "head_dim", "length", "message"),
    [
        (2, 32, 128, "head_dim to be 64 or 128, not 32"),
        (3, 64, 128, r"num_heads × head_dim \(192\) to be a multiple of 128"),
        (2, 64, 200, "lengths that are multiples of 128, not 200 and 128"),
    ],
)
def test_shapes_without_kernels(num_heads: int, head_dim: int, length: int, message: str) -> None:
    sizes = {**SIZES, "mlp_dim": 8, "num_heads": num_heads, "head_dim": head_dim}
    with pytest.raises(UserError, match=message):
        is_used(T5Config(**sizes, attention="pallas"), length, 128)
    tpu = AbstractDevice(device_kind="TPU v4", num_cores=1, platform="tpu")
    with use_abstract_mesh(AbstractMesh((1, 1, 1), MESH_AXES, abstract_device=tpu)):
        assert not is_used(T5Config(**sizes), length, 128)
        assert is_used(T5Config(**{**sizes, "num_heads": 2, "head_dim": 64}), 256, 128)
    assert not is_used(T5Config(**{**sizes, "num_heads": 2, "head_dim": 64}), 256, 128)


def test_training_refuses_lengths_without_kernels() -> None:
    network = {**cases.T5_1_1, "num_heads": 2, "head_dim": 64, "attention": "pallas"}
    trainer = Engine(cases.Case(network=network)).trainer
    lengths = f"{cases.TARGETS_LENGTH} and {cases.INPUTS_LENGTH}"
    with pytest.raises(UserError, match=f"multiples of 128, not {lengths}"):
        trainer.check_functions(cases.eval_batches(packed=False)[0])


def test_kernels_that_fail_on_this_machine_are_not_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = T5Config(**SIZES, mlp_dim=8, num_heads=2, head_dim=64)
    assert not flash._problem(64, "bfloat16")
    with monkeypatch.context() as wrong:
        wrong.setattr(flash, "_sum_diagonals", lambda x: jnp.zeros((8, 2 * x.shape[1])))
        assert flash._problem(64, "bfloat16") == "their results differ from those of the formula"
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")  # Its compiler is not here.
    assert not jax.jit(lambda: is_used(network, 128, 128))()
    printed = capsys.readouterr().err
    assert printed.startswith("The attention kernels are not used, because they do not compile (")
    assert printed.count("\n") == 1
