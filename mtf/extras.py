"""Imports of optional packages."""

from __future__ import annotations

import importlib
from types import ModuleType

from mtf.errors import UserError


def import_extra(module: str, purpose: str, extra: str = "tasks") -> ModuleType:
    """Imports `module`; raises a UserError that names the `extra` if its package is missing."""
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
