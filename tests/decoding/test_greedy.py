"""Greedy decoding against choosing the best token of whole forward passes."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from mtf.decoding.greedy import greedy
from mtf.models import t5
from mtf.models.stacking import stack_layers
from tests.models.test_t5 import APPLY, SMALL


def without_cache(params: t5.Params, inputs: np.ndarray, max_length: int, eos: int) -> np.ndarray:
    rows = len(inputs)
    decoded = np.zeros((rows, max_length), np.int32)
    ended = np.zeros(rows, bool)
    for i in range(max_length):
        batch = {
            "encoder_input_tokens": inputs,
            "decoder_input_tokens": np.pad(decoded, ((0, 0), (1, 0)))[:, :-1],
            "decoder_target_tokens": np.ones((rows, max_length), np.int32),
        }
        best = np.argmax(np.asarray(APPLY(SMALL, params, batch))[:, i], axis=-1)
        decoded[:, i] = np.where(ended, 0, best)
        ended |= best == eos
    return decoded


@pytest.mark.parametrize("stacked", [False, True])
def test_greedy_takes_the_best_token_until_the_end(stacked: bool) -> None:
    params = t5.init_params(SMALL, jax.random.PRNGKey(5))
    inputs = np.random.default_rng(0).integers(2, 48, (4, 9)).astype(np.int32)
    inputs[1, 4:] = 0
    free = without_cache(params, inputs, 8, eos=-1)
    # A token that some row decodes in the middle stands for EOS, so that rows end apart.
    eos = int(free[0, 3])
    expected = without_cache(params, inputs, 8, eos)
    assert (expected[0, 4:] == 0).all()
    ours = greedy(SMALL, stack_layers(params) if stacked else params, inputs, 8, eos)
    np.testing.assert_array_equal(ours, expected)


def test_padding_changes_nothing() -> None:
    params = t5.init_params(SMALL, jax.random.PRNGKey(5))
    inputs = np.random.default_rng(0).integers(2, 48, (2, 5)).astype(np.int32)
    padded = np.pad(inputs, ((0, 0), (0, 7)))
    np.testing.assert_array_equal(
        greedy(SMALL, params, inputs, 6), greedy(SMALL, params, padded, 6)
    )
