"""Random choices as pure functions of where they are made.

Nothing here has a state that runs along: every choice has its own generator, named by (seed,
epoch, purpose, place), so that any moment of training can be returned to. Philox is used because
its raw numbers are the same in all versions of numpy.
"""

from __future__ import annotations

import enum
import functools

import numpy as np


class Purpose(enum.IntEnum):
    """What a choice is for; choices of different purposes are independent."""

    HELD_OUT = 0
    ORDER = 1
    CHUNK = 2
    NOISE = 3
    EVALUATION = 4


def random_bits(
    count: int, seed: int, epoch: int, purpose: Purpose, place: int = 0, item: int = 0
) -> np.ndarray:
    """Returns `count` uniform uint64, always the same ones for the same place."""
    key = np.array([seed, epoch], dtype=np.uint64)
    # The first word is what the generator itself counts.
    counter = np.array([0, purpose, place, item], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


@functools.lru_cache(maxsize=4)
def permutation(num_items: int, seed: int, epoch: int, purpose: Purpose) -> np.ndarray:
    """Returns a random order of `num_items` numbers, read-only, (num_items,) int64."""
    order = np.argsort(random_bits(num_items, seed, epoch, purpose), kind="stable")
    order.flags.writeable = False
    return order
