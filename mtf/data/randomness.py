"""Makes random choices that depend only on the arguments, so that no state has to be stored.

The generator is Philox, because its raw output is the same in all versions of NumPy.
"""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict

import numpy as np


class Purpose(enum.IntEnum):
    """The purpose of a random choice; choices with different purposes are independent."""

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
    count: int, seed: int, epoch: int, purpose: Purpose, index: int = 0, item: int = 0
) -> np.ndarray:
    """Returns `count` uniform random uint64 values, which depend only on the arguments."""
    key = np.array([seed, epoch], dtype=np.uint64)
    # Philox increments the first word of its counter.
    counter = np.array([0, purpose, index, item], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


# The most recently used permutations. At least `_MIN_KEPT` of them are kept, and more as long as
# they contain at most 2**25 numbers in total.
_kept: OrderedDict[tuple[int, ...], np.ndarray] = OrderedDict()
_MIN_KEPT = 4
_room = 2**25
_lock = threading.Lock()


def permutation(num_items: int, seed: int, epoch: int, purpose: Purpose) -> np.ndarray:
    """Returns a random permutation of 0 … num_items - 1 as a read-only int64 array."""
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


def derived_seed(seed: int, purpose: Purpose, index: int, item: int = 0) -> int:
    """Returns a seed in [0, 2**63) for a part of the data."""
    return int(random_bits(1, seed, 0, purpose, index, item)[0] >> np.uint64(1))
