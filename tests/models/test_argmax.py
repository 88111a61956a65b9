"""The most probable token."""

from __future__ import annotations

import numpy as np

from mtf.models.argmax import argmax


def test_the_first_of_equal_logits_is_taken() -> None:
    logits = np.random.default_rng(0).integers(0, 5, (7, 3, 11)).astype(np.float32)
    np.testing.assert_array_equal(argmax(logits), np.argmax(logits, axis=-1))
