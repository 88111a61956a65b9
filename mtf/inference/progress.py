"""A bar that tells how far inference has come: on a terminal and in a notebook, else nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(
    description: str, total: int, *, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """Shows a bar until the block ends; gives a function that moves it on by so many.

    Args:
      description: what is being done.
      total: how many there are.
      shown: False shows nothing, also on a terminal.
    """
    # Not at the top: it takes longer to import than most calls take to run.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    disable = not (shown and (console.is_terminal or console.is_jupyter))
    with Progress(*columns, console=console, transient=True, disable=disable) as progress:
        task = progress.add_task(description, total=total)
        yield lambda number: progress.advance(task, number)
