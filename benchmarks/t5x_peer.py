"""T5X (commit cc342d4; docs/t5x.md has the pip command) as a peer of the benchmarks."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
from sides import SIZES

from conversion.families import T5_VOCAB_SIZE

Batches = Iterator[tuple[Any, Any]]


def check_installed() -> None:
    """Ends the process with a message if T5X is not installed."""
    if importlib.util.find_spec("t5x") is None:
        raise SystemExit("--peer t5x needs T5X, which is not installed; see docs/t5x.md.")


def _t5x() -> Any:
    from mtf.t5x import compatibility  # noqa: F401, I001  # before T5X is imported
    import t5x.trainer
    import t5x.utils  # With `trainer`, it imports the other modules.
    from absl import logging

    logging.set_verbosity(logging.ERROR)
    return t5x


def model_of(args: argparse.Namespace, decode: str = "beam") -> Any:
    """Returns T5 1.1 with Adafactor, as T5X's gin files define it."""
    t5x = _t5x()
    import jax.numpy as jnp
    import seqio
    from t5x.examples.t5 import network

    config = network.T5Config(
        vocab_size=T5_VOCAB_SIZE,
        dtype=getattr(jnp, args.dtype),
        **SIZES[args.size]._asdict(),
        mlp_activations=("gelu", "linear"),
        dropout_rate=0.0,
        logits_via_embedding=False,
    )
    functions = {
        "beam": t5x.decoding.beam_search,
        "greedy": functools.partial(t5x.decoding.temperature_sample, topk=1),
    }
    vocabulary = seqio.ByteVocabulary()
    optimizer = t5x.adafactor.Adafactor(
        logical_factor_rules=t5x.adafactor.standard_logical_factor_rules()
    )
    return t5x.models.EncoderDecoderModel(
        network.Transformer(config),
        vocabulary,
        vocabulary,
        optimizer,
        decode_fn=functions[decode],
        z_loss=1e-4,
        loss_normalizing_factor="NUM_REAL_TARGET_TOKENS",
    )


def features(inputs: Any, targets: Any) -> dict[str, np.ndarray]:
    """Returns the features of rows without padding, by T5X's names."""
    return {
        "encoder_input_tokens": inputs.astype(np.int32),
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1].astype(np.int32),
        "decoder_target_tokens": targets.astype(np.int32),
        "decoder_loss_weights": np.ones_like(targets, np.int32),
    }


def _initializer(model: Any, args: argparse.Namespace) -> tuple[Any, Any]:
    import jax.numpy as jnp

    t5x = _t5x()
    partitioner = t5x.partitioning.PjitPartitioner(
        num_partitions=1, logical_axis_rules=t5x.partitioning.standard_logical_axis_rules()
    )
    lengths = args.inputs_length, args.targets_length
    rows = features(*(np.ones((args.batch, length), np.int32) for length in lengths))
    initializer = t5x.utils.TrainStateInitializer(
        model.optimizer_def,
        model.get_initial_variables,
        {name: row.shape for name, row in rows.items()},
        partitioner,
        dict.fromkeys(rows, jnp.int32),
    )
    return initializer, partitioner


def training_step(
    args: argparse.Namespace, batches: Batches
) -> tuple[Callable[[], None], dict[str, Any]]:
    """Returns T5X's training step, as its training loop calls it."""
    import jax

    t5x = _t5x()
    model = model_of(args)
    initializer, partitioner = _initializer(model, args)
    trainer = t5x.trainer.Trainer(
        model,
        initializer.from_scratch(jax.random.PRNGKey(0)),
        partitioner,
        eval_names=[],
        summary_dir=None,
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(0),
        learning_rate_fn=t5x.utils.create_learning_rate_scheduler("constant", 1e-4),
        num_microbatches=None,
    )
    rows = (features(*pair) for pair in batches)
    started = time.perf_counter()
    trainer.compile_train(next(rows))
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(trainer.train_state.params))

    def step() -> None:
        trainer.train(rows, 1).result()

    return step, {
        "versions": f"T5X, jax {version('jax')}",
        "parameters": num_parameters,
        "compile": time.perf_counter() - started,
    }


def decoding_runs(
    args: argparse.Namespace, inputs: np.ndarray
) -> tuple[dict[str, Callable[[], None]], str]:
    """Returns T5X's greedy decoding and its beam search with 4 beams, without EOS."""
    import jax

    rows = features(inputs, np.ones((args.batch, args.targets_length), np.int32))
    initializer, _ = _initializer(model_of(args), args)
    params = initializer.from_scratch(jax.random.PRNGKey(0)).params

    def decode(method: str, num_decodes: int) -> Callable[[], None]:
        model = model_of(args, method)

        @jax.jit
        def predict(params: Any, rows: Any) -> Any:
            return model.predict_batch_with_aux(
                params, rows, decoder_params={"eos_id": -1}, num_decodes=num_decodes
            )

        return lambda: jax.block_until_ready(predict(params, rows))

    runs = {"t5x greedy": decode("greedy", 1), "t5x beam 4": decode("beam", 4)}
    return runs, f"T5X, jax {version('jax')}"
