"""What is raised for a checkpoint that cannot be read or converted."""

from __future__ import annotations


class ConversionError(ValueError):
    """A checkpoint that cannot be used as asked; the message says what, where and why."""


class IncompleteCheckpoint(ConversionError):
    """A checkpoint whose writing was interrupted, or of which files are missing."""
