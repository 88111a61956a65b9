"""The worker of gpu.py that runs attention through XLA and through cuDNN, with T5's bias."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gpu_workers import Side, serve

from mtf.models import t5
from mtf.models.attention import dot_product_attention

Arrays = tuple[jax.Array, ...]


class Attention(Side):
    """Attention with unscaled logits and a learned bias, in bfloat16."""

    def case(
        self,
        batch: int,
        queries: int,
        keys: int,
        heads: int,
        kind: str,
        packed: bool,
        head_dim: int = 64,
    ) -> dict[str, Any]:
        """Makes the operands. `kind`: encoder, decoder (causal) or cross (without bias).

        If `packed`, rows hold four examples, and a mask keeps them apart.
        """
        self.free()
        keys_of = iter(jax.random.split(jax.random.PRNGKey(0), 5))

        def normal(*shape: int) -> jax.Array:
            return jax.random.normal(next(keys_of), shape)

        query = normal(batch, queries, heads, head_dim) / head_dim**0.5
        key, value = (normal(batch, keys, heads, head_dim) for _ in range(2))
        operands = [x.astype(jnp.bfloat16) for x in (query, key, value)]
        if kind != "cross":
            operands.append(normal(1, heads, queries, keys))  # float32, like the parameters
        segments = [np.arange(n) * 4 // n + 1 if packed else np.ones(n) for n in (queries, keys)]
        mask = t5.segment_mask(*(jnp.asarray(np.tile(x, (batch, 1)), jnp.int32) for x in segments))
        self._causal, self._packed = kind == "decoder", packed
        if self._causal:
            mask &= jnp.tril(jnp.ones((queries, keys), bool))
        cotangent = normal(batch, queries, heads, head_dim)
        self._arguments = (mask, cotangent, *operands)
        exact = (mask, cotangent, *(x.astype(jnp.float32) for x in operands))
        with jax.default_matmul_precision("highest"):
            self._expected = [jax.jit(f)(*exact) for f in _passes(self._xla)]
        return {}

    def implementation(self, name: str, backward: bool) -> dict[str, Any]:
        """Builds an implementation's forward pass, or its forward and backward pass.

        Returns the relative errors of the output, or of each gradient, against XLA in float32.
        """
        function = _passes(getattr(self, f"_{name}"))[backward]
        started = time.perf_counter()
        compiled = jax.jit(function).lower(*self._arguments).compile()
        compile_seconds = time.perf_counter() - started
        result: Any = compiled(*self._arguments)
        errors = map(_relative_error, result, self._expected[backward])
        names = ("query", "key", "value", "bias") if backward else ("output",)

        def call() -> None:
            nonlocal result
            result = compiled(*self._arguments)

        return self.built(
            call,
            lambda: jax.block_until_ready(result),
            name,
            compile=compile_seconds,
            gib=compiled.memory_analysis().temp_size_in_bytes / 2**30,
            errors=dict(zip(names, errors, strict=False)),
        )

    def _mtf(self, mask: jax.Array, *operands: jax.Array) -> jax.Array:
        query, key, value, *bias = operands
        no_dropout = t5.Dropout(0.0, None)
        return dot_product_attention(query, key, value, mask, bias[0] if bias else None, no_dropout)

    def _xla(self, mask: jax.Array, *operands: jax.Array) -> jax.Array:
        return _jax_attention(*operands, implementation="xla", mask=mask)

    def _cudnn(self, mask: jax.Array, *operands: jax.Array) -> jax.Array:
        return _jax_attention(
            *operands,
            implementation="cudnn",
            mask=mask if self._packed else None,
            is_causal=self._causal,
        )


def _jax_attention(query: jax.Array, *operands: jax.Array, **settings: Any) -> jax.Array:
    key, value, *bias = operands
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias=bias[0].astype(query.dtype) if bias else None,
        scale=1.0,
        **settings,
    )


def _passes(attention: Callable[..., jax.Array]) -> tuple[Callable[..., Arrays], ...]:
    """Returns the forward pass, and a function to the gradients of all operands."""

    def forward(mask: jax.Array, cotangent: jax.Array, *operands: jax.Array) -> Arrays:
        return (attention(mask, *operands),)

    def loss(operands: Arrays, mask: jax.Array, cotangent: jax.Array) -> jax.Array:
        return jnp.sum(attention(mask, *operands).astype(jnp.float32) * cotangent)

    def backward(mask: jax.Array, cotangent: jax.Array, *operands: jax.Array) -> Arrays:
        return jax.grad(loss)(operands, mask, cotangent)

    return forward, backward


def _relative_error(found: jax.Array, expected: jax.Array) -> float:
    difference = found.astype(jnp.float32) - expected.astype(jnp.float32)
    return float(jnp.linalg.norm(difference.ravel()) / jnp.linalg.norm(expected.ravel()))


if __name__ == "__main__":
    serve(Attention)
