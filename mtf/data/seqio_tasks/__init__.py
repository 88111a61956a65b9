"""Converts SeqIO tasks to mtf tasks, and mtf tasks to SeqIO tasks.

Importing this package does not import SeqIO, which is optional.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import ModuleType

from mtf.base.extras import import_extra
from mtf.base.progress import waiting

PURPOSE = "SeqIO's pipeline, unlike training from a token cache (data.loader='cache'),"


def import_seqio() -> ModuleType:
    """Returns the module `seqio`; raises UserError if it is not installed."""
    with (
        os.fdopen(os.dup(2), "w") as stderr,
        waiting("importing SeqIO and TensorFlow", stream=stderr),
        _without_stderr(),
    ):
        return import_extra("seqio", PURPOSE, "seqio")


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Discards what is written to stderr: TensorFlow describes its search for GPUs there."""
    before = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
