"""Tables of a checkpoint's tensors, and of the differences between two checkpoints."""

from __future__ import annotations

import argparse
import math
import shutil

from conversion import Checkpoint, ConversionError, infer_architecture
from conversion.families import describe
from conversion.inspection import (
    Compared,
    compare,
    has_state,
    named_tensors,
    statistics,
)
from mtf.errors import conversion_as_user_errors
from mtf.inference.opening import open_source

_COLUMNS = "{:<18} {:<8} {:>10} {:>10} {:>10} {:>10} {:>7}"


@conversion_as_user_errors()
def inspect(arguments: argparse.Namespace) -> None:
    """Prints the tensors of a checkpoint with statistics and names."""
    checkpoint = open_source(arguments.checkpoint, arguments.step)
    print(_title(checkpoint))
    print(_network(checkpoint))
    print()
    print(_COLUMNS.format("shape", "type", "min", "max", "mean", "std", "NaN/inf"))
    num_values, num_bytes, bad = 0, 0, []
    found = named_tensors(checkpoint)
    for tensor, stored, hf in found:
        size = math.prod(tensor.shape)
        num_values, num_bytes = num_values + size, num_bytes + size * tensor.dtype.itemsize
        _print_name(tensor.name)
        # A directory of T5X or Orbax has the name with dots.
        if stored.replace(".", "/") != tensor.name:
            _print_name(f"  file: {stored}")
        if hf is not None and hf != stored:
            _print_name(f"  Hugging Face: {hf}")
        values = statistics(tensor)
        numbers = [f"{number:.4g}" for number in values[:4]]
        others = values.num_nan + values.num_infinite
        shape = " × ".join(map(str, tensor.shape)) or "scalar"
        print(_COLUMNS.format(shape, tensor.dtype.name, *numbers, others), flush=True)
        if others:
            bad.append(tensor.name)
    print()
    print(f"{len(found):,} tensors, {num_values:,} values, {num_bytes:,} bytes")
    if bad:
        print(f"NaN or infinity in {len(bad)} tensors: {', '.join(bad[:3])}{'…' * (len(bad) > 3)}")


@conversion_as_user_errors()
def compare_checkpoints(arguments: argparse.Namespace) -> int:
    """Prints the tensors that differ between two checkpoints; returns 1 if there are any."""
    first = open_source(arguments.checkpoint, arguments.step)
    second = open_source(arguments.out_dir, arguments.step)
    print(f"A: {_title(first)}")
    print(f"B: {_title(second)}")
    if has_state(first) != has_state(second):
        without = "A" if has_state(second) else "B"
        print(f"{without} has no optimizer state, so only the parameters are compared.")
    num_equal, num_different, types = 0, 0, set[str]()
    for each in compare(first, second):
        if each.first and each.second and each.first.dtype != each.second.dtype:
            types.add(f"{each.first.dtype} in A and {each.second.dtype} in B")
        if each.is_equal:
            num_equal += 1
            continue
        if not num_different:
            print(f"\n{'max |A - B|':>12} {'relative':>10} {'values':>12}  tensor")
        num_different += 1
        _print_name(_row(each))
    if num_different:
        print()
    if types:
        print(f"Types differ, which is no difference here: {'; '.join(sorted(types))}.")
    print(
        f"{num_equal:,} tensors are equal, {num_different:,} differ or are missing."
        if num_different
        else f"All {num_equal:,} tensors are equal."
    )
    return int(num_different > 0)


def _row(each: Compared) -> str:
    if each.first is None or each.second is None:
        return f"{f'missing in {chr(65 + (each.first is not None))}':>36}  {each.name}"
    if each.difference is None:
        shapes = f"shape {each.first.shape} in A, {each.second.shape} in B"
        return f"{shapes:>36}  {each.name}"
    num_values, absolute, relative = each.difference
    return f"{absolute:>12.4g} {relative:>10.2e} {num_values:>12,}  {each.name}"


def _title(checkpoint: Checkpoint) -> str:
    step = "" if checkpoint.step is None else f", step {checkpoint.step}"
    kind = ", scanned network" * checkpoint.is_scanned
    return f"{checkpoint.path} ({checkpoint.layout}{kind}{step})"


def _network(checkpoint: Checkpoint) -> str:
    try:
        return f"The network has {describe(infer_architecture(checkpoint))}"
    except ConversionError as error:
        return f"The network is unknown: {error}"


def _print_name(text: str) -> None:
    """Prints a line; on a terminal, a middle part that does not fit is left out."""
    width = shutil.get_terminal_size((200, 24)).columns
    if len(text) > width:
        text = f"{text[: width // 2 - 1]}…{text[len(text) - (width - width // 2) :]}"
    print(text)
