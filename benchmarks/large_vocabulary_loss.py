"""Times the loss and its gradients at mT5's vocabulary: all logits at once, and in chunks.

pip install -e . && python benchmarks/large_vocabulary_loss.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import jax
import jax.numpy as jnp

from mtf.training.losses import weighted_cross_entropy


def main() -> None:
    """Parses the command line and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab-size", type=int, default=250112)
    parser.add_argument("--emb-dim", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--chunks", type=int, nargs="+", default=[256, 64, 16, 4])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    hidden = jax.random.normal(keys[0], (args.batch_size, args.length, args.emb_dim))
    kernel = jax.random.normal(keys[1], (args.emb_dim, args.vocab_size)) * args.emb_dim**-0.5
    targets = jax.random.randint(keys[2], (args.batch_size, args.length), 0, args.vocab_size)
    weights = jnp.ones((args.batch_size, args.length))

    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, {args}")
    print(f"{'positions at a time':>20}{'median s':>10}{'temporaries GiB':>17}{'loss':>14}")
    for chunk in args.chunks:

        def loss(h: jax.Array, k: jax.Array, chunk: int = chunk) -> jax.Array:
            return weighted_cross_entropy(h, k, targets, weights, z_loss=1e-4, chunk=chunk).loss

        step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(hidden, kernel).compile()
        seconds = []
        for _ in range(args.repeats):
            start = time.perf_counter()
            value, _ = jax.block_until_ready(step(hidden, kernel))
            seconds.append(time.perf_counter() - start)
        memory = step.memory_analysis().temp_size_in_bytes / 2**30
        print(f"{chunk:20}{statistics.median(seconds):10.2f}{memory:17.2f}{float(value):14.2f}")


if __name__ == "__main__":
    main()
