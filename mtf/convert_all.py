"""Converts all checkpoints of a run, one after another (`python -m mtf.convert --all`)."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from mtf.errors import UserError, conversion_as_user_errors
from mtf.progress import rate_bar
from mtf.storage import UNFINISHED, AnyPath, as_path

if TYPE_CHECKING:
    from conversion import Checkpoint, Tensor

_MEGABYTE = 10**6


def convert_all(
    source: str, out_dir: str, dtype: str | None, convert: Callable[[AnyPath, AnyPath], int]
) -> int:
    """Converts each `checkpoint_STEP` of a directory to a directory of the same name in `out_dir`.

    Those that are there already are checked and skipped. If one fails, the others are converted.

    Args:
      source: run directory or directory of checkpoints.
      out_dir: directory of the results.
      dtype: type of the written parameters; None keeps the stored type.
      convert: converts a checkpoint to a directory; returns its exit status.

    Returns the exit status: 1 if a checkpoint failed. Raises a RunError for a full disk.
    """
    from conversion.checkpoint import list_checkpoints

    found = list_checkpoints(source) if as_path(source).is_dir() else []
    if not found:
        raise UserError(
            f"--all: {source} has no directories named checkpoint_STEP. Pass a run directory or a "
            "directory of checkpoints, or leave out --all."
        )
    failed: dict[str, str] = {}
    for number, (_, path) in enumerate(found, start=1):
        out = as_path(out_dir) / path.name
        print(f"[{number}/{len(found)}] {path.name}", flush=True)
        try:
            if _exists(out):
                _check(path, out, dtype)
                print(f"{out} is complete; skipped")
            elif convert(path, out):
                failed[path.name] = "its verification failed"
        except UserError as error:
            failed[path.name] = str(error)
            print(f"error: {error}", file=sys.stderr)
    print(f"{len(found) - len(failed)} of {len(found)} checkpoints are in {out_dir}")
    if failed:
        lines = [f"  {name}: {reason.splitlines()[0]}" for name, reason in failed.items()]
        print("\n".join([f"error: {len(failed)} failed:", *lines]), file=sys.stderr)
    return 1 if failed else 0


def _exists(out: AnyPath) -> bool:
    """Returns whether there is a result, which is not an unfinished one in a store."""
    return out.is_dir() and any(out.iterdir()) and not (out / UNFINISHED).is_file()


@conversion_as_user_errors()
def _check(source: AnyPath, out: AnyPath, dtype: str | None) -> None:
    """Raises a UserError unless `out` has the parameters of `source`; compares no values."""
    from conversion import ConversionError, open_checkpoint

    def described(checkpoint: Checkpoint, dtype: str | None) -> dict[str, tuple[object, ...]]:
        parameters = checkpoint.parameters().items()
        return {name: (x.shape, dtype or x.dtype.name) for name, x in parameters}

    expected, problem = described(open_checkpoint(source), dtype), "other names, shapes or types"
    try:
        if described(open_checkpoint(out), None) == expected:
            return
    except ConversionError as error:
        problem = str(error)
    raise UserError(
        f"{out} exists, but is not the conversion of {source} ({problem}). Delete it, or choose "
        "another directory."
    )


class _Holder(Protocol):
    tensors: dict[str, Tensor]


@contextmanager
def bytes_bar(holder: _Holder, title: str, root: str = "") -> Iterator[None]:
    """Shows how many megabytes of the tensors below `root` have been read within the block."""
    before = holder.tensors
    found = [x for name, x in before.items() if name.startswith(root)]
    total = sum(math.prod(x.shape) * x.dtype.itemsize for x in found)
    lock, num_bytes = threading.Lock(), 0
    with rate_bar(-(-total // _MEGABYTE), "MB") as report:

        def advance(size: int) -> None:
            nonlocal num_bytes
            with lock:
                num_bytes += size
                report(num_bytes // _MEGABYTE, num_bytes // _MEGABYTE, title)

        holder.tensors = {name: tensor.reporting(advance) for name, tensor in before.items()}
        try:
            yield
        finally:
            holder.tensors = before
