"""Random choices as pure functions of where they are made.

Nothing here has a state that runs along: every choice has its own generator, named by (seed,
epoch, purpose, place), so that any moment of training can be returned to. Philox is used because
its raw numbers are the same in all versions of numpy.
"""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np


class Purpose(enum.IntEnum):
    """What a choice is for; choices of different purposes are independent."""

    HELD_OUT = 0
    ORDER = 1
    CHUNK = 2
    NOISE = 3
    EVALUATION = 4
    CORPUS = 5
    MIXING = 6
    FILES = 7
    WINDOW = 8


def random_bits(
    count: int, seed: int, epoch: int, purpose: Purpose, place: int = 0, item: int = 0
) -> np.ndarray:
    """Returns `count` uniform uint64, always the same ones for the same place."""
    key = np.array([seed, epoch], dtype=np.uint64)
    # The first word is what the generator itself counts.
    counter = np.array([0, purpose, place, item], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


class _Cache:
    """The permutations that were used last: a few large ones, or many small ones."""

    def __init__(self, num_items: int):
        self._room = num_items
        self._kept: OrderedDict[tuple[int, ...], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[int, ...], make: Callable[[], np.ndarray]) -> np.ndarray:
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None:
                found = make()
                self._room -= len(found)
            self._kept[key] = found
            while self._room < 0 and len(self._kept) > _MIN_KEPT:
                self._room += len(self._kept.popitem(last=False)[1])
            return found


_MIN_KEPT = 4
_permutations = _Cache(2**25)  # of 8 bytes


def permutation(num_items: int, seed: int, epoch: int, purpose: Purpose) -> np.ndarray:
    """Returns a random order of `num_items` numbers, read-only, (num_items,) int64."""

    def make() -> np.ndarray:
        order = np.argsort(random_bits(num_items, seed, epoch, purpose), kind="stable")
        order.flags.writeable = False
        return order

    return _permutations.get((num_items, seed, epoch, purpose), make)


def derived_seed(seed: int, purpose: Purpose, place: int, item: int = 0) -> int:
    """Returns a seed of its own for a part of the data, from 0 to 2**63 - 1."""
    return int(random_bits(1, seed, 0, purpose, place, item)[0] >> np.uint64(1))
