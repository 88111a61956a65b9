"""Compiles the attention kernels, forward and backward, for a TPU that need not be here.

python -m tests.plan.compile_kernels TARGET    # prints what it has compiled
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from mtf.cli.plan.targets import parse_target
from mtf.models.flash_attention import bias_rows, flash_attention
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig

# Queries, keys, head size, dtype, whether keys after the query are masked.
CASES = (
    *((512, 512, 64, "bfloat16", False), (4096, 4096, 64, "float32", True)),
    *((4096, 4096, 128, "float32", False), (384, 640, 128, "bfloat16", False)),
)


def compiled(mesh: Any, num_queries: int, num_keys: int, head_dim: int, *rest: Any) -> str:
    """Returns the compiled program, with all options of the kernels."""
    dtype, causal = rest
    batch, heads, width = 2, 256 // head_dim, 256

    def attend(*x: jax.Array) -> jax.Array:
        query, key, value, bias, query_segments, key_segments, scales = x
        rows = bias_rows(bias, head_dim, causal=causal)
        return flash_attention(
            query, key, value, query_segments, key_segments, rows, scales, head_dim
        )

    def with_gradients(d_y: jax.Array, *x: jax.Array) -> Any:
        y, pull = jax.vjp(lambda *floats: attend(*floats, *x[4:]), *x[:4])
        return y, pull(d_y)

    queries = jax.ShapeDtypeStruct((batch, num_queries, width), dtype)
    keys = jax.ShapeDtypeStruct((batch, num_keys, width), dtype)
    bias = jax.ShapeDtypeStruct((heads, num_queries + num_keys), jnp.float32)
    segments = [jax.ShapeDtypeStruct((batch, n), jnp.int32) for n in (num_queries, num_keys)]
    scales = jax.ShapeDtypeStruct((batch, heads, num_keys), jnp.float32)
    arguments = (queries, queries, keys, keys, bias, *segments, scales)
    with mesh.in_force():
        program = jax.jit(with_gradients, out_shardings=mesh.replicated).lower(*arguments)
    return str(program.compile().as_text())


def main() -> None:
    """Compiles all cases."""
    target = parse_target(sys.argv[1])
    assert target.chip is not None
    options = target.chip.topology_options(target.shape)
    topology = topologies.get_topology_desc(str(target), target.platform, **options)
    devices = PjitPartitioner.create(PartitionerConfig(), list(topology.devices)[:1])
    for case in CASES:
        print(case, compiled(devices, *case).count("tpu_custom_call"))


if __name__ == "__main__":
    main()
