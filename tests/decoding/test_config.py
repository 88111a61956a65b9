"""What `Decoding` refuses."""

from __future__ import annotations

from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.inference.decoding.settings import DecodingConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "bream"}, ["'greedy', 'sample' or 'beam'", "'bream'"]),
        ({"max_length": 0}, ["max_length", "at least 1"]),
        ({"method": "sample", "temperature": -0.1}, ["temperature", "-0.1"]),
        ({"method": "sample", "top_p": 0.0}, ["top_p", "greater than 0 and at most 1"]),
        (
            {"method": "sample", "top_k": 5, "top_p": 0.9},
            ["top_k (5)", "top_p (0.9)", "both be set"],
        ),
        ({"top_k": 5}, ["top_k", "method='sample'"]),
        ({"method": "beam", "temperature": 0.7}, ["temperature", "method='sample'"]),
        ({"num_return": 2}, ["num_return is 2", "'beam' or 'sample'"]),
        ({"method": "beam", "num_return": 5}, ["num_return (5)", "num_beams (4)"]),
        ({"method": "beam", "length_penalty_form": "gnmt"}, ["'t5x' or 'hf'", "'gnmt'"]),
        ({"method": "beam", "length_penalty": -1.0}, ["length_penalty", "-1.0"]),
        ({"method": "beam", "early_stopping": True}, ["early_stopping", "'hf'"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"max_length": "8"}, ["max_length must be a whole number", "'8'"]),
        ({"method": "sample", "temperature": "hot"}, ["temperature must be a number", "'hot'"]),
    ],
)
def test_refused(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        DecodingConfig(**settings)
    for word in words:
        assert word in str(error.value)


def test_taken() -> None:
    DecodingConfig(method="sample", temperature=0.0, num_return=8)
    DecodingConfig(method="beam", num_return=4, length_penalty=-1.0, length_penalty_form="hf")
