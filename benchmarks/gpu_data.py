"""What both sides of gpu.py share: the networks' sizes and the tokens."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

import numpy as np

from mtf.models.settings import T5Config
from mtf.models.sizes import T5_1_1_SIZES, T5_VOCAB_SIZE, Size

# `tiny` is for trying the script where there is no GPU.
SIZES = {**T5_1_1_SIZES, "tiny": Size(2, 2, 32, 64, 2, 16)}


def network(size: str, **settings: Any) -> T5Config:
    """Returns T5 1.1 of a size, in bfloat16 and without dropout."""
    vocab_size = 512 if size == "tiny" else T5_VOCAB_SIZE
    sizes = SIZES[size]._asdict()
    return T5Config(vocab_size=vocab_size, dropout_rate=0.0, **{**sizes, **settings})


class Rows(NamedTuple):
    """A training batch: token ids, and the segments of packed rows (from 1); (batch, length)."""

    inputs: np.ndarray
    targets: np.ndarray
    input_segments: np.ndarray
    target_segments: np.ndarray


def training_rows(size: str, batch: int, inputs_length: int, targets_length: int) -> list[Rows]:
    """Returns a few batches of random tokens without padding, four examples in a row."""
    rng = np.random.default_rng(0)
    vocab_size = network(size).vocab_size

    def tokens(length: int) -> np.ndarray:
        return rng.integers(2, vocab_size, (batch, length)).astype(np.int32)

    def segments(length: int) -> np.ndarray:
        return np.tile(np.arange(length, dtype=np.int32) * 4 // length + 1, (batch, 1))

    return [
        Rows(
            tokens(inputs_length),
            tokens(targets_length),
            segments(inputs_length),
            segments(targets_length),
        )
        for _ in range(4)
    ]


def decoding_inputs(size: str, batch: int, length: int) -> np.ndarray:
    """Returns random tokens without padding, (batch, length)."""
    rng = np.random.default_rng(1)
    return rng.integers(2, network(size).vocab_size, (batch, length)).astype(np.int32)


Examples = list[tuple[list[int], list[list[int]]]]


def rank_examples(size: str, number: int, inputs_length: int, targets_length: int) -> Examples:
    """Returns examples with four choices, log-normal in length around the two medians.

    Inputs have at most 1024 tokens and choices 256, as in T0's evaluation. Choices end with EOS.
    """
    rng = np.random.default_rng(2)
    vocab_size = network(size).vocab_size

    def tokens(median: int, most: int) -> list[int]:
        length = round(median * float(rng.lognormal(0.0, 0.35)))
        return rng.integers(2, vocab_size, min(max(1, length), most)).tolist()

    return [
        (tokens(inputs_length, 1024), [[*tokens(targets_length, 255), 1] for _ in range(4)])
        for _ in range(number)
    ]


def about_examples(examples: Examples) -> dict[str, float]:
    """Returns the mean numbers of tokens."""
    targets = [len(target) for _, choices in examples for target in choices]
    return {
        "inputs": statistics.mean(len(inputs) for inputs, _ in examples),
        "targets": statistics.mean(targets),
    }
