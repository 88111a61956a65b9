"""Packages that a plain install lacks, imported where they are first needed."""

from __future__ import annotations

import importlib
from types import ModuleType

from mtf.errors import UserError


def import_extra(module: str, purpose: str, extra: str = "tasks") -> ModuleType:
    """Returns `module`, one of those that an extra of this package installs.

    Raises:
      UserError: it is not installed; `purpose` says what it would be for.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise UserError(
            f"{purpose} needs the package {package}, which is not installed; "
            f"run: pip install 'mtf-jax[{extra}]'"
        ) from error
