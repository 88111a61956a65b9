"""The values of a type that can be listed: constants, enumerations and components."""

from __future__ import annotations

import enum
import inspect
import sys
import typing
from typing import Any

from mtf.config import types
from mtf.errors import UserError


def of_type(declared: Any) -> list[str]:
    """Returns the values of a type as --set accepts them; a space ends those without arguments."""
    found: list[str] = []
    for member in types.members(declared):
        if typing.get_origin(member) is typing.Literal:
            found += [f"{value} " for value in typing.get_args(member)]
        elif member is bool:
            found += ["True ", "False "]
        elif member in (None, type(None)):
            found.append("None ")
        elif isinstance(member, type) and issubclass(member, enum.Enum):
            found += [f"{value.name} " for value in member]
        elif types.is_component(member):
            found.append(f"@{_public_name(member)}")
    if any(each.startswith("@") for each in found):
        found += [f"@{name}" for name in _builders(declared)]
    return found


def _public_name(target: type) -> str:
    """Returns the dotted name of a class in the package that exports it, or in its module."""
    parts = target.__module__.split(".")
    for depth in range(2, len(parts)):
        package = sys.modules.get(".".join(parts[:depth]))
        if getattr(package, target.__name__, None) is target:
            return f"{'.'.join(parts[:depth])}.{target.__name__}"
    return f"{target.__module__}.{target.__qualname__}"


def _builders(declared: Any) -> list[str]:
    """Returns the functions of `mtf.builders` that make a component of a type."""
    from mtf import builders

    found = []
    for module_name in builders.__all__:
        module = getattr(builders, module_name)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("_") or function.__module__ != module.__name__:
                continue
            try:
                types.check_builder(function, name, declared)
            except (types.Mismatch, UserError):
                continue
            found.append(f"{module.__name__}.{name}")
    return found
