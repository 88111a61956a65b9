"""Finds the subclasses of a class."""

from __future__ import annotations

import inspect
from typing import Any


def concrete_subclasses(cls: Any) -> list[Any]:
    """Returns the subclasses of `cls` without abstract methods in all modules imported so far."""
    found = [] if inspect.isabstract(cls) else [cls]
    for each in cls.__subclasses__():
        found += concrete_subclasses(each)
    return found
