"""Statistics of a checkpoint's tensors, and differences between two checkpoints' tensors.

Tensors are read in blocks of rows, so memory does not grow with the model.
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
from conversion.tensor import Checkpoint, ConversionError, Tensor

# Values are float64 while they are computed with, which has all values of the other types.
_VALUES_AT_ONCE = 2**20


class Statistics(NamedTuple):
    """Statistics of the finite values of a tensor; NaN if it has none.

    Attributes:
      minimum, maximum, mean, std: those of the finite values; `std` divides by their number.
      num_nan, num_infinite: numbers of other values.
    """

    minimum: float
    maximum: float
    mean: float
    std: float
    num_nan: int
    num_infinite: int


class Named(NamedTuple):
    """A tensor, with its name in the file and in Hugging Face (None: it has none there)."""

    tensor: Tensor
    stored: str
    hf: str | None


class Difference(NamedTuple):
    """How the values of a tensor differ between two checkpoints.

    Attributes:
      num_values: number of values that differ; NaN equals NaN.
      max_absolute: largest absolute difference; infinity if a value that is not finite differs.
      relative: `max_absolute` divided by the largest absolute value of the first tensor.
    """

    num_values: int
    max_absolute: float
    relative: float


class Compared(NamedTuple):
    """A tensor of two checkpoints; `first` or `second` is None if it is missing there.

    `difference` is None if a tensor is missing or the shapes differ.
    """

    name: str
    first: Tensor | None
    second: Tensor | None
    difference: Difference | None

    @property
    def is_equal(self) -> bool:
        """Whether both have the tensor, with the same values."""
        return self.difference is not None and self.difference.num_values == 0


def named_tensors(checkpoint: Checkpoint) -> list[Named]:
    """Returns the tensors of a checkpoint, layers in the order of their numbers."""
    try:
        entries = mapping.entries(infer_architecture(checkpoint))
        theirs = {f"target/{entry.t5x}": entry.hf for entry in entries}
    except ConversionError:
        theirs = {}  # not a T5 network
    return [
        Named(tensor, tensor.stored or name, theirs.get(name))
        for name, tensor in sorted(checkpoint.tensors.items(), key=lambda item: _order(item[0]))
    ]


def statistics(tensor: Tensor) -> Statistics:
    """Returns statistics of a tensor; raises ConversionError if it cannot be read."""
    count, mean, squares, num_nan, num_infinite = 0, 0.0, 0.0, 0, 0
    minimum, maximum = math.inf, -math.inf
    for part in _parts(tensor):
        num_nan += int(np.count_nonzero(np.isnan(part)))
        num_infinite += int(np.count_nonzero(np.isinf(part)))
        finite = part[np.isfinite(part)]
        if not finite.size:
            continue
        minimum, maximum = min(minimum, finite.min()), max(maximum, finite.max())
        # The mean and the sum of squares of two parts are merged (Chan et al., 1979).
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
    """Compares tensors of the same name, of any types and layouts.

    The training state is compared if both checkpoints have one (see `has_state`). Raises
    ConversionError if a tensor cannot be read.
    """
    with_state = has_state(first) and has_state(second)
    names = {
        name
        for name in (*first.tensors, *second.tensors)
        if with_state or name.startswith("target/")
    }
    for name in sorted(names, key=_order):
        a, b = first.tensors.get(name), second.tensors.get(name)
        comparable = a is not None and b is not None and a.shape == b.shape
        yield Compared(name, a, b, difference(a, b) if comparable and a and b else None)


def has_state(checkpoint: Checkpoint) -> bool:
    """Returns whether a checkpoint has the state of the optimizer."""
    return any(name.startswith("state/param_states/") for name in checkpoint.tensors)


def difference(first: Tensor, second: Tensor) -> Difference:
    """Returns how two tensors of the same shape differ."""
    num_values, max_absolute, largest = 0, 0.0, 0.0
    for a, b in _parts(first, second):
        differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        num_values += int(np.count_nonzero(differs))
        largest = max(largest, float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a))))
        if differs.any():
            deltas = np.abs(a[differs] - b[differs])
            max_absolute = max(max_absolute, float(np.nan_to_num(deltas, nan=np.inf).max()))
    relative = max_absolute / largest if largest else math.inf if max_absolute else 0.0
    return Difference(num_values, max_absolute, relative)


def _parts(*tensors: Tensor) -> Iterator[Any]:
    """Yields the values of some rows of a tensor, or a list with those of several, as float64."""

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
    """Returns a key that sorts parameters before the state, and layer 2 before layer 10."""
    parts = re.split(r"(\d+)", name)
    is_state = [(int(not name.startswith("target/")), 0, "")]
    return is_state + [(0, int(x), "") if x.isdigit() else (1, 0, x) for x in parts]
