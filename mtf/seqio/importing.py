"""Imports SeqIO, or names the extra that installs it."""

from __future__ import annotations

from types import ModuleType

from mtf.extras import check_extra, import_extra

_PURPOSE = "SeqIO's pipeline, unlike training from a token cache (data.loader='cache'),"


def import_seqio() -> ModuleType:
    """Returns the module `seqio`; raises UserError if it is not installed."""
    return import_extra("seqio", _PURPOSE, "seqio")


def check_seqio() -> None:
    """Raises UserError if SeqIO is not installed, but does not import it."""
    check_extra("seqio", _PURPOSE, "seqio")
