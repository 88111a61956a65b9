"""Mixing: every example of every component, in order, at its rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtf.base.errors import UserError
from mtf.data.mixing import Mixing

# As in T0++: 464 tasks, capped sizes from hundreds to half a million.
T0_LIKE = [int(n) for n in np.geomspace(400, 500_000, 464)]

RATES = st.lists(st.one_of(st.integers(1, 500_000), st.floats(1e-4, 1.0)), min_size=1, max_size=60)


@given(rates=RATES, number=st.integers(1, 3000))
def test_every_beginning_has_the_rates_and_every_example_once_in_order(
    rates: list[float], number: int
) -> None:
    mixing = Mixing(rates)
    counts = np.zeros((number + 1, len(rates)))
    for index in range(number):
        component, position = mixing.locate(index)
        counts[index + 1] = counts[index]
        assert position == counts[index, component]
        counts[index + 1, component] += 1
    expected = np.arange(number + 1)[:, None] * np.array(rates) / sum(rates)
    assert abs(counts - expected).max() <= 2


@given(rates=RATES, mixed=st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_far_positions_are_at_their_rates_too(rates: list[float], mixed: list[int]) -> None:
    mixing = Mixing(rates)
    found = [mixing.locate(number) for number in mixed]
    for number, (component, position) in zip(mixed, found, strict=True):
        # Rates that are not whole numbers are rounded by up to 2**-31 of the sum.
        share = rates[component] / sum(rates)
        assert abs(position - number * share) <= 2 + number * len(rates) * 2.0**-31


def test_whole_rates_are_exact_however_far() -> None:
    mixing, total = Mixing(T0_LIKE), sum(T0_LIKE)
    for number in range(10**15, 10**15 + 5000):
        component, position = mixing.locate(number)
        assert abs(position * total - number * T0_LIKE[component]) <= 2 * total


def test_no_rates_are_refused() -> None:
    with pytest.raises(UserError, match="none were given"):
        Mixing([])
