"""Random choices as pure functions of (seed, epoch, purpose, place), so resuming needs no state.

Philox is used because its raw numbers are the same in all versions of numpy.
"""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict

import numpy as np


class Purpose(enum.IntEnum):
    """Purpose of a random choice; choices with different purposes are independent."""

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
    """Returns `count` uniform uint64, determined by the arguments."""
    key = np.array([seed, epoch], dtype=np.uint64)
    # The generator counts in the first word.
    counter = np.array([0, purpose, place, item], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


# A cache of permutations: at least `_MIN_KEPT`, and more while they have at most 2**25 numbers.
_kept: OrderedDict[tuple[int, ...], np.ndarray] = OrderedDict()
_MIN_KEPT = 4
_room = 2**25
_lock = threading.Lock()


def permutation(num_items: int, seed: int, epoch: int, purpose: Purpose) -> np.ndarray:
    """Returns a random order of the numbers below `num_items`, read-only, (num_items,) int64."""
    global _room
    key = (num_items, seed, epoch, purpose)
    with _lock:
        order = _kept.pop(key, None)
        if order is None:
            order = np.argsort(random_bits(num_items, seed, epoch, purpose), kind="stable")
            order.flags.writeable = False
            _room -= num_items
        _kept[key] = order
        while _room < 0 and len(_kept) > _MIN_KEPT:
            _room += len(_kept.popitem(last=False)[1])
        return order


def derived_seed(seed: int, purpose: Purpose, place: int, item: int = 0) -> int:
    """Returns the seed for a part of the data, from 0 to 2**63 - 1."""
    return int(random_bits(1, seed, 0, purpose, place, item)[0] >> np.uint64(1))
