"""Imports optional packages."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from mtf.base.errors import UserError


def import_extra(module: str, purpose: str, extra: str = "tasks") -> ModuleType:
    """Imports a module; if it is not installed, raises a UserError that names `extra`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise _not_installed(package, purpose, extra) from error


def check_extra(package: str, purpose: str, extra: str = "tasks") -> None:
    """Raises the UserError of `import_extra` if a package is missing, without importing modules."""
    if sys.modules.get(package) is None and importlib.util.find_spec(package) is None:
        raise _not_installed(package, purpose, extra)


def _not_installed(package: str, purpose: str, extra: str) -> UserError:
    return UserError(
        f"{purpose} needs the package {package}, which is not installed; "
        f"run: pip install 'mtf-jax[{extra}]'"
    )
