"""Computes statistics of the tensors in a checkpoint, and differences between two checkpoints.

Tensors are read in blocks of rows, to limit memory use.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from conversion import mapping
from conversion.architecture import infer_architecture
from conversion.blocks import in_order, row_blocks
from conversion.checksums import checking
from conversion.tensor import Checkpoint, ConversionError, Tensor

# The number of values to convert at a time to float64, which represents all smaller types exactly.
_VALUES_AT_ONCE = 2**20


class Statistics(NamedTuple):
    """Statistics of a tensor.

    Attributes:
      minimum, maximum, mean, std: statistics of the finite values, or NaN if there are none; `std`
        is the population standard deviation.
      num_nan, num_infinite: the numbers of NaNs and of infinite values.
    """

    minimum: float
    maximum: float
    mean: float
    std: float
    num_nan: int
    num_infinite: int


class Compared(NamedTuple):
    """The result of comparing the tensors that have the same name in two checkpoints.

    Attributes:
      name: the name of the tensors.
      first, second: the tensors, or None for a checkpoint that does not contain the tensor.
      num_values: the number of values that differ; two NaNs count as equal. None if one of the
        tensors is missing or their shapes differ.
      max_absolute: the largest absolute difference; infinity if one of two different values is not
        finite.
      relative: `max_absolute` divided by the largest finite absolute value of the first tensor.
    """

    name: str
    first: Tensor | None
    second: Tensor | None
    num_values: int | None = None
    max_absolute: float = 0.0
    relative: float = 0.0


def named_tensors(checkpoint: Checkpoint) -> list[tuple[Tensor, str | None]]:
    """Returns (tensor, Hugging Face's name) pairs in layer order; None if there is no such name."""
    try:
        entries = mapping.entries(infer_architecture(checkpoint))
        theirs = {f"target/{entry.t5x}": entry.hf for entry in entries}
    except ConversionError:
        theirs = {}  # not a T5 network
    names = sorted(checkpoint.tensors, key=_order)
    return [(checkpoint.tensors[name], theirs.get(name)) for name in names]


def statistics(tensor: Tensor) -> Statistics:
    """Computes the statistics of a tensor; raises ConversionError if it cannot be read."""
    count, mean, squares, num_nan, num_infinite = 0, 0.0, 0.0, 0, 0
    minimum, maximum = math.inf, -math.inf
    for part in _parts(tensor):
        num_nan += int(np.count_nonzero(np.isnan(part)))
        num_infinite += int(np.count_nonzero(np.isinf(part)))
        finite = part[np.isfinite(part)]
        if not finite.size:
            continue
        minimum, maximum = min(minimum, finite.min()), max(maximum, finite.max())
        # Combine the means and sums of squares of two parts (Chan et al., 1979).
        part_mean = float(finite.mean())
        delta, total = part_mean - mean, count + finite.size
        squares += float(np.square(finite - part_mean).sum())
        squares += delta**2 * count * finite.size / total
        mean, count = mean + delta * finite.size / total, total
    if not count:
        return Statistics(math.nan, math.nan, math.nan, math.nan, num_nan, num_infinite)
    std = math.sqrt(squares / count)
    return Statistics(float(minimum), float(maximum), mean, std, num_nan, num_infinite)


def compare(first: Checkpoint, second: Checkpoint) -> Iterator[Compared]:
    """Compares the tensors of two checkpoints by name; their types and layouts may differ.

    The training state is compared only if both checkpoints contain one (see `has_state`). Raises
    ConversionError if a tensor cannot be read or a file does not match its checksum.
    """
    with_state = has_state(first) and has_state(second)
    names = {
        name
        for name in (*first.tensors, *second.tensors)
        if with_state or name.startswith("target/")
    }
    with checking(first.path), checking(second.path):
        for name in sorted(names, key=_order):
            a, b = first.tensors.get(name), second.tensors.get(name)
            same_shape = a is not None and b is not None and a.shape == b.shape
            yield Compared(name, a, b, *(_difference(a, b) if same_shape and a and b else ()))


def has_state(checkpoint: Checkpoint) -> bool:
    """Returns whether a checkpoint contains optimizer state."""
    return any(name.startswith("state/param_states/") for name in checkpoint.tensors)


def _difference(first: Tensor, second: Tensor) -> tuple[int, float, float]:
    """Returns the last three fields of `Compared` for two tensors of the same shape."""
    num_values, max_absolute, largest = 0, 0.0, 0.0
    for a, b in _parts(first, second):
        differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        num_values += int(np.count_nonzero(differs))
        largest = max(largest, float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a))))
        if differs.any():
            deltas = np.abs(a[differs] - b[differs])
            max_absolute = max(max_absolute, float(np.nan_to_num(deltas, nan=np.inf).max()))
    relative = max_absolute / largest if largest else math.inf if max_absolute else 0.0
    return num_values, max_absolute, relative


def _parts(*tensors: Tensor) -> Iterator[Any]:
    """Yields blocks of rows as float64 arrays; for several tensors, as lists of one per tensor."""

    def read(rows: slice) -> list[Any]:
        return [np.atleast_1d(x.read((rows,) if x.shape else ...)) for x in tensors]

    first = tensors[0]
    row_size = math.prod(first.shape[1:])
    row_bytes = row_size * sum(x.dtype.itemsize for x in tensors)
    jobs = (
        ((rows.stop - rows.start) * row_bytes, functools.partial(read, rows))
        for rows in row_blocks(first)
    )
    step = max(1, _VALUES_AT_ONCE // max(1, row_size))
    for arrays in in_order(jobs):
        for start in range(0, len(arrays[0]), step):
            parts = [array[start : start + step].astype(np.float64) for array in arrays]
            yield parts[0] if len(parts) == 1 else parts


def _order(name: str) -> list[tuple[int, int, str]]:
    """Returns a sort key that puts parameters before other tensors, and layer 2 before layer 10."""
    parts = re.split(r"(\d+)", name)
    is_state = [(int(not name.startswith("target/")), 0, "")]
    return is_state + [(0, int(x), "") if x.isdigit() else (1, 0, x) for x in parts]
