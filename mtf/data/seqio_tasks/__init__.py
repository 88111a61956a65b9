"""Converts SeqIO tasks to mtf tasks, and mtf tasks to SeqIO tasks.

Importing this package does not import SeqIO, which is optional.
"""

from __future__ import annotations

from types import ModuleType

from mtf.base.extras import import_extra

PURPOSE = "SeqIO's pipeline, unlike training from a token cache (data.loader='cache'),"


def import_seqio() -> ModuleType:
    """Returns the module `seqio`; raises UserError if it is not installed."""
    return import_extra("seqio", PURPOSE, "seqio")
