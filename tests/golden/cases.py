"""The training runs of the parity suite, in numpy: both engines read them from here.

Start parameters and batches are computed by fixed rules from numpy's `RandomState`, whose streams
never change (NEP 19), so that nothing but T5X's results needs to be stored.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

Batch = dict[str, np.ndarray]

NUM_STEPS = 50
# After this step the engines exchange checkpoints.
EXCHANGE_STEP = 20
NUM_EVAL_BATCHES = 2
BATCH_SIZE, INPUTS_LENGTH, TARGETS_LENGTH = 8, 24, 16
EOS_ID = 1

# Names of settings are T5X's. Both networks have attention that is wider than `emb_dim`.
T5_1_1: dict[str, Any] = {
    "vocab_size": 384,
    "emb_dim": 32,
    "num_heads": 4,
    "head_dim": 12,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "mlp_dim": 64,
    "mlp_activations": ("gelu", "linear"),
    "dropout_rate": 0.0,
    "logits_via_embedding": False,
    "dtype": "float32",
}
T5_1_0 = {**T5_1_1, "mlp_activations": ("relu",), "logits_via_embedding": True}
NETWORKS = {"t5_1_1": T5_1_1, "t5_1_0": T5_1_0}


@dataclasses.dataclass(frozen=True)
class Case:
    """A training run of NUM_STEPS steps.

    Attributes:
      network: fields of T5X's `T5Config`.
      model: arguments of `EncoderDecoderModel`.
      optimizer: arguments of `Adafactor`.
      adamw: settings of `AdamWConfig`, which replaces Adafactor; T5X runs optax's with the same.
      schedule: arguments of `create_learning_rate_scheduler`.
      num_microbatches: number of parts of a batch.
      packed: whether rows hold several examples.
      tolerance: largest relative difference of a step's loss between the engines.
      ratio: T5X's loss divided by ours, where they differ as docs/t5x.md says.
    """

    network: Mapping[str, Any] = dataclasses.field(default_factory=lambda: T5_1_1)
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    adamw: Mapping[str, Any] | None = None
    schedule: Mapping[str, Any] = dataclasses.field(
        default_factory=lambda: {"factors": "constant", "base_learning_rate": 1e-2}
    )
    num_microbatches: int = 1
    packed: bool = False
    tolerance: float = 1e-5
    ratio: float = 1.0


def _factor(value: float | str | None, **other: Any) -> Case:
    return Case(model={"loss_normalizing_factor": value}, **other)


_RSQRT = {"factors": "constant * linear_warmup * rsqrt_decay", "warmup_steps": 10}

CASES: dict[str, Case] = {
    "constant": Case(),
    # Its checkpoints are exchanged, so its optimizer state is small.
    "rsqrt": Case(
        optimizer={"min_dim_size_to_factor": 32}, schedule={**_RSQRT, "base_learning_rate": 0.1}
    ),
    "factored": Case(optimizer={"min_dim_size_to_factor": 32}),
    "label_smoothing": Case(model={"label_smoothing": 0.1}),
    "z_loss": Case(model={"z_loss": 1e-2}),
    "normalized_by_number": _factor(100.0),
    "normalized_by_real_tokens": _factor("NUM_REAL_TARGET_TOKENS"),
    "normalized_by_all_tokens": _factor("NUM_TOTAL_TARGET_TOKENS"),
    "normalized_per_sequence": _factor("AVERAGE_PER_SEQUENCE"),
    "packed": Case(packed=True),
    "packed_per_sequence": _factor("AVERAGE_PER_SEQUENCE", packed=True),
    "bfloat16": Case(network={**T5_1_1, "dtype": "bfloat16"}, tolerance=2e-3),
    "weight_decay": Case(optimizer={"weight_decay_rate": 1e-3}),
    "weight_decay_times_rate": Case(
        optimizer={"weight_decay_rate": 0.5, "weight_decay_rate_lr_exponent": 1.0}
    ),
    "beta1": Case(optimizer={"beta1": 0.9}),
    "norm_clip": Case(optimizer={"global_norm_clip_threshold": 1.0}),
    "one_microbatch": Case(num_microbatches=1, model={"loss_normalizing_factor": 50.0}),
    "two_microbatches": Case(num_microbatches=2),
    "microbatches_of_one_row": Case(num_microbatches=BATCH_SIZE),
    # T5X divides the loss of each microbatch by that microbatch's tokens.
    "two_microbatches_by_all_tokens": _factor(
        "NUM_TOTAL_TARGET_TOKENS", num_microbatches=2, ratio=2.0
    ),
    "adamw": Case(
        adamw={
            "beta1": 0.8,
            "beta2": 0.95,
            "epsilon": 1e-6,
            "weight_decay_rate": 0.1,
            "global_norm_clip_threshold": 50.0,
        },
        schedule={
            "factors": "constant * linear_warmup",
            "base_learning_rate": 1e-2,
            "warmup_steps": 10,
        },
    ),
    "t5_1_0": Case(network=T5_1_0, optimizer={"min_dim_size_to_factor": 32}),
}
MODEL_DEFAULTS = {"z_loss": 1e-4, "label_smoothing": 0.0, "loss_normalizing_factor": None}


_FACTORS_TO_DECODE = {
    "/out/kernel": 8.0,
    "wo/kernel": 2.0,
    "query/kernel": 3.0,
    "rel_embedding": 4.0,
}


def start(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the initial value of a parameter with T5X's name, such as "decoder/…/kernel".

    Values are uniform with the variance of T5X's initializers, which only needs exact arithmetic.
    """
    random = np.random.RandomState(zlib.crc32(name.encode()))
    unit = math.sqrt(3.0) * (2.0 * random.random_sample(shape) - 1.0)
    if name.endswith("/scale"):
        return (1.0 + 0.1 * unit).astype(np.float32)
    if name.endswith("rel_embedding"):
        std = math.sqrt(2.0 / sum(shape))
    elif name.endswith("embedding"):
        std = 1.0
    else:
        std = 1.0 / math.sqrt(shape[0])
        if "/query/" in name:
            std /= math.sqrt(T5_1_1["head_dim"])
    return (std * unit).astype(np.float32)


def start_to_decode(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns `start`, changed so that decoding yields many tokens and ends at many lengths.

    Attention counts more than the embedding of the last token, which would otherwise be repeated.
    """
    value = start(name, shape)
    for ending, factor in _FACTORS_TO_DECODE.items():
        if name.endswith(ending):
            value *= np.float32(factor)
    if name == "decoder/logits_dense/kernel":
        value[:, EOS_ID] *= 6.0
    if name == "token_embedder/embedding":  # The output kernel of the tied network.
        value[EOS_ID] = 1.5 * (value[EOS_ID] + value[11])
    return value


def _example(random: np.random.RandomState, inputs: int, targets: int) -> tuple[Any, Any]:
    """Returns token ids of the given lengths; small ids are frequent, EOS ends the targets."""
    # The targets begin like the inputs, so there is more to learn than frequencies.
    tokens = 3 + (381 * random.random_sample(max(inputs, targets)) ** 3).astype(np.int32)
    return tokens[:inputs], np.append(tokens[: targets - 1], EOS_ID)


@functools.cache
def batches(packed: bool, number: int = NUM_STEPS, seed: int = 0) -> tuple[Batch, ...]:
    """Returns batches of int32 features named as those of T5X, with padding at the end of rows."""
    random = np.random.RandomState(seed + 1000 * packed)
    return tuple(_batch(random, packed) for _ in range(number))


def eval_batches(packed: bool) -> tuple[Batch, ...]:
    """Returns batches that no run trains on."""
    return batches(packed, NUM_EVAL_BATCHES, seed=1)


def _batch(random: np.random.RandomState, packed: bool) -> Batch:
    inputs = np.zeros((BATCH_SIZE, INPUTS_LENGTH), np.int32)
    targets = np.zeros((BATCH_SIZE, TARGETS_LENGTH), np.int32)
    before = np.zeros_like(targets)
    segments = {"encoder": np.zeros_like(inputs), "decoder": np.zeros_like(targets)}
    positions = {"encoder": np.zeros_like(inputs), "decoder": np.zeros_like(targets)}
    most = 3 if packed else 1
    for row in range(BATCH_SIZE):
        places = [0, 0]
        # The last row has fewer examples, so rows and sequences weigh differently.
        for segment in range(1, most + 1 - (packed and row == BATCH_SIZE - 1)):
            lengths = (
                random.randint(2, INPUTS_LENGTH // most + 1),
                random.randint(2, TARGETS_LENGTH // most + 1),
            )
            spans = [slice(at, at + n) for at, n in zip(places, lengths, strict=True)]
            inputs[row, spans[0]], tokens = _example(random, *lengths)
            targets[row, spans[1]] = tokens
            before[row, spans[1]] = np.append(0, tokens[:-1])
            for side, span, length in zip(segments, spans, lengths, strict=True):
                segments[side][row, span] = segment
                positions[side][row, span] = np.arange(length)
            places = [span.stop for span in spans]
    batch = {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": before,
        "decoder_target_tokens": targets,
        "decoder_loss_weights": (targets > 0).astype(np.int32),
    }
    if packed:
        batch |= {f"{side}_segment_ids": ids for side, ids in segments.items()}
        batch |= {f"{side}_positions": ids for side, ids in positions.items()}
    return batch
