"""Prints the tensors of a checkpoint, and the differences between two checkpoints.

Tensors are read in blocks of rows, to limit memory use.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from conversion import ConversionError, infer_architecture, mapping
from conversion.blocks import in_order, row_blocks
from conversion.checksums import checking
from conversion.families import describe
from conversion.tensor import Tensor
from mtf.base.errors import conversion_as_user_errors
from mtf.inference.opening import open_source

_COLUMNS = "{:<18} {:<8} {:>10} {:>10} {:>10} {:>10} {:>7}"
# The number of values to convert at a time to float64, which represents all smaller types exactly.
_VALUES_AT_ONCE = 2**20


@conversion_as_user_errors()
def inspect(path: str, step: int | None) -> int:
    """Prints the names and statistics of a checkpoint's tensors; returns 0."""
    checkpoint = open_source(path, step)
    print(checkpoint.title)
    of_hf: dict[str, str] = {}
    try:
        sizes = infer_architecture(checkpoint)
        of_hf = {f"target/{entry.t5x}": entry.hf for entry in mapping.entries(sizes)}
        print(f"The network has {describe(sizes)}\n")
    except ConversionError as error:
        print(f"The network is unknown: {error}\n")
    print(_COLUMNS.format("shape", "type", "min", "max", "mean", "std", "NaN/inf"))
    tensors = [checkpoint.tensors[name] for name in sorted(checkpoint.tensors, key=_order)]
    bad = []
    with checking(checkpoint.path):
        for tensor in tensors:
            stored = tensor.stored or tensor.name
            print(tensor.name)
            # T5X and Orbax separate the parts of a name with dots.
            if stored.replace(".", "/") != tensor.name:
                print(f"  file: {stored}")
            if of_hf.get(tensor.name, stored) != stored:
                print(f"  Hugging Face: {of_hf[tensor.name]}")
            *numbers, others = statistics(tensor)
            shape = " × ".join(map(str, tensor.shape)) or "scalar"
            shown = (f"{number:.4g}" for number in numbers)
            print(_COLUMNS.format(shape, tensor.dtype.name, *shown, others), flush=True)
            if others:
                bad.append(tensor.name)
    num_values, num_bytes = sum(math.prod(x.shape) for x in tensors), sum(x.nbytes for x in tensors)
    print(f"\n{len(tensors):,} tensors, {num_values:,} values, {num_bytes:,} bytes")
    if bad:
        print(f"NaN or infinity in {len(bad)} tensors: {', '.join(bad[:3])}{'…' * (len(bad) > 3)}")
    return 0


@conversion_as_user_errors()
def compare(a: str, b: str, step: int | None) -> int:
    """Prints the tensors that differ between two checkpoints; returns 1 if there are any.

    Tensors are compared by name; their types and layouts may differ.
    """
    first, second = open_source(a, step), open_source(b, step)
    print(f"A: {first.title}\nB: {second.title}")
    names = first.tensors.keys() | second.tensors.keys()
    if not (first.has_state and second.has_state):
        names = {name for name in names if name.startswith("target/")}
    if first.has_state != second.has_state:
        without = "A" if second.has_state else "B"
        print(f"{without} has no optimizer state, so only the parameters are compared.")
    num_different, types = 0, set[str]()
    with checking(first.path), checking(second.path):
        for name in sorted(names, key=_order):
            x, y = first.tensors.get(name), second.tensors.get(name)
            if x is None or y is None:
                found = f"missing in {'A' if x is None else 'B'}"
            elif x.shape != y.shape:
                found = f"shape {x.shape} in A, {y.shape} in B"
            else:
                found = _difference(x, y)
            if x is not None and y is not None and x.dtype != y.dtype:
                types.add(f"{x.dtype} in A and {y.dtype} in B")
            if found:
                if not num_different:
                    print(f"\n{'max |A - B|':>12} {'relative':>10} {'values':>12}  tensor")
                num_different += 1
                print(f"{found:>36}  {name}")
    summary = f"All {len(names):,} tensors are equal."
    if num_different:
        num_equal = len(names) - num_different
        summary = f"{num_equal:,} tensors are equal, {num_different:,} differ or are missing."
        print()
    if types:
        print(f"Different types, which do not count as differences: {'; '.join(sorted(types))}.")
    print(summary)
    return int(num_different > 0)


def statistics(tensor: Tensor) -> tuple[float, float, float, float, int]:
    """Returns the minimum, maximum, mean and population standard deviation of the finite values.

    They are NaN if there are none. The last number is that of the other values.
    """
    count, mean, squares, num_others = 0, 0.0, 0.0, 0
    minimum, maximum = math.inf, -math.inf
    for (part,) in _parts(tensor):
        finite = part[np.isfinite(part)]
        num_others += part.size - finite.size
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
        return math.nan, math.nan, math.nan, math.nan, num_others
    return float(minimum), float(maximum), mean, math.sqrt(squares / count), num_others


def _difference(first: Tensor, second: Tensor) -> str:
    """Describes how two tensors of the same shape differ; returns "" if all values are equal.

    The text has the largest absolute difference, which is infinite if one of two different values
    is not finite; its ratio to the largest finite absolute value of the first tensor; and the
    number of values that differ. Two NaNs count as equal.
    """
    num_values, max_absolute, largest = 0, 0.0, 0.0
    for a, b in _parts(first, second):
        differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        num_values += int(np.count_nonzero(differs))
        largest = max(largest, float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a))))
        if differs.any():
            deltas = np.abs(a[differs] - b[differs])
            max_absolute = max(max_absolute, float(np.nan_to_num(deltas, nan=np.inf).max()))
    relative = max_absolute / largest if largest else math.inf
    return f"{max_absolute:>12.4g} {relative:>10.2e} {num_values:>12,}" if num_values else ""


def _parts(*tensors: Tensor) -> Iterator[list[Any]]:
    """Yields blocks of rows of tensors with the same shape, as float64 arrays."""

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
            yield [array[start : start + step].astype(np.float64) for array in arrays]


def _order(name: str) -> list[tuple[int, int, str]]:
    """Returns a sort key that puts parameters before other tensors, and layer 2 before layer 10."""
    parts = re.split(r"(\d+)", name)
    is_state = [(int(not name.startswith("target/")), 0, "")]
    return is_state + [(0, int(x), "") if x.isdigit() else (1, 0, x) for x in parts]
