"""Imports modules of a package on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType


def submodules(package: str, *names: str) -> Callable[[str], ModuleType]:
    """Returns a `__getattr__` of a package that imports its modules `names` on first use."""

    def getattr_(name: str) -> ModuleType:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    return getattr_
