"""Prints the tensors of a checkpoint, and the differences between two checkpoints."""

from __future__ import annotations

import math

from conversion import Checkpoint, ConversionError, infer_architecture
from conversion.checksums import checking
from conversion.families import describe
from conversion.inspection import Compared, compare, has_state, named_tensors, statistics
from mtf.base.errors import conversion_as_user_errors
from mtf.inference.opening import open_source

_COLUMNS = "{:<18} {:<8} {:>10} {:>10} {:>10} {:>10} {:>7}"


@conversion_as_user_errors()
def inspect(path: str, step: int | None) -> int:
    """Prints the names and statistics of a checkpoint's tensors; returns 0."""
    checkpoint = open_source(path, step)
    with checking(checkpoint.path):
        _print_tensors(checkpoint)
    return 0


def _print_tensors(checkpoint: Checkpoint) -> None:
    print(checkpoint.title)
    try:
        print(f"The network has {describe(infer_architecture(checkpoint))}\n")
    except ConversionError as error:
        print(f"The network is unknown: {error}\n")
    print(_COLUMNS.format("shape", "type", "min", "max", "mean", "std", "NaN/inf"))
    num_values, num_bytes, bad = 0, 0, []
    found = named_tensors(checkpoint)
    for tensor, hf in found:
        stored = tensor.stored or tensor.name
        size = math.prod(tensor.shape)
        num_values, num_bytes = num_values + size, num_bytes + tensor.nbytes
        print(tensor.name)
        # T5X and Orbax separate the parts of a name with dots.
        if stored.replace(".", "/") != tensor.name:
            print(f"  file: {stored}")
        if hf is not None and hf != stored:
            print(f"  Hugging Face: {hf}")
        values = statistics(tensor)
        numbers = [f"{number:.4g}" for number in values[:4]]
        others = values.num_nan + values.num_infinite
        shape = " × ".join(map(str, tensor.shape)) or "scalar"
        print(_COLUMNS.format(shape, tensor.dtype.name, *numbers, others), flush=True)
        if others:
            bad.append(tensor.name)
    print(f"\n{len(found):,} tensors, {num_values:,} values, {num_bytes:,} bytes")
    if bad:
        print(f"NaN or infinity in {len(bad)} tensors: {', '.join(bad[:3])}{'…' * (len(bad) > 3)}")


@conversion_as_user_errors()
def compare_checkpoints(a: str, b: str, step: int | None) -> int:
    """Prints the tensors that differ between two checkpoints; returns 1 if there are any."""
    first, second = open_source(a, step), open_source(b, step)
    print(f"A: {first.title}\nB: {second.title}")
    if has_state(first) != has_state(second):
        without = "A" if has_state(second) else "B"
        print(f"{without} has no optimizer state, so only the parameters are compared.")
    num_equal, num_different, types = 0, 0, set[str]()
    for each in compare(first, second):
        if each.first and each.second and each.first.dtype != each.second.dtype:
            types.add(f"{each.first.dtype} in A and {each.second.dtype} in B")
        if each.num_values == 0:
            num_equal += 1
            continue
        if not num_different:
            print(f"\n{'max |A - B|':>12} {'relative':>10} {'values':>12}  tensor")
        num_different += 1
        print(_row(each))
    summary = f"All {num_equal:,} tensors are equal."
    if num_different:
        summary = f"{num_equal:,} tensors are equal, {num_different:,} differ or are missing."
        print()
    if types:
        print(f"Different types, which do not count as differences: {'; '.join(sorted(types))}.")
    print(summary)
    return int(num_different > 0)


def _row(each: Compared) -> str:
    if each.first is None or each.second is None:
        return f"{f'missing in {chr(65 + (each.first is not None))}':>36}  {each.name}"
    if each.num_values is None:
        shapes = f"shape {each.first.shape} in A, {each.second.shape} in B"
        return f"{shapes:>36}  {each.name}"
    differences = f"{each.max_absolute:>12.4g} {each.relative:>10.2e} {each.num_values:>12,}"
    return f"{differences}  {each.name}"
