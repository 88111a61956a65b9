"""Defines expressions that can be evaluated to a config or converted to source code."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import fiddle as fdl

from mtf.config.codegen import Writer, bracketed


@dataclasses.dataclass
class Call:
    """A call to a builder, such as `builders.model.t5_1_1("xl", dropout_rate=0.1)`.

    Attributes:
      target: the builder, which is a function in one of the modules of `mtf.builders`.
      arguments: the positional arguments.
      keywords: the keyword arguments.
      sets: a dict mapping fields of the result to values that are assigned after the call.
    """

    target: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    sets: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class ConfigOf:
    """The expression `fdl.Config(target, argument, …, name=value, …)`."""

    target: Callable[..., Any]
    keywords: dict[str, Any]
    arguments: tuple[Any, ...] = ()


@dataclasses.dataclass
class Constant:
    """A constant that a package exports, such as `mtf.partitioning.FULLY_SHARDED_AXIS_RULES`."""

    package: str
    name: str


def evaluate(expression: Any) -> Any:
    """Evaluates an expression to a config or another value."""
    if isinstance(expression, Constant):
        return getattr(importlib.import_module(expression.package), expression.name)
    if isinstance(expression, ConfigOf):
        arguments = [evaluate(each) for each in expression.arguments]
        return fdl.Config(expression.target, *arguments, **_evaluated(expression.keywords))
    if isinstance(expression, Call):
        arguments = [evaluate(each) for each in expression.arguments]
        made = expression.target(*arguments, **_evaluated(expression.keywords))
        for path, value in expression.sets.items():
            *parents, field = path.split(".")
            owner = made
            for parent in parents:
                owner = getattr(owner, parent)
            setattr(owner, field, evaluate(value))
        return made
    return expression


def _evaluated(keywords: dict[str, Any]) -> dict[str, Any]:
    return {name: evaluate(value) for name, value in keywords.items()}


class Code(Writer):
    """Generates the statements and imports of a function that returns an expression."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def module_of(self, target: Any) -> str:
        """Returns the module from which to import a class or function: a package if possible."""
        module = super().module_of(target)
        for package in (".".join(module.split(".")[:2]), "mtf.data"):
            if getattr(importlib.import_module(package), target.__name__, None) is target:
                return package
        return module

    def value(self, value: Any, depth: int, prefix: str) -> str:
        """Returns the code for an expression that follows `prefix` at indentation level `depth`.

        For a call with `sets`, this method adds statements that assign the result of the call to a
        variable and set its fields. The returned code is then the name of the variable.
        """
        if isinstance(value, Constant):
            self.imports[value.name] = (value.package, value.name)
            return value.name
        if isinstance(value, ConfigOf):
            items = [self.name(value.target)]
            items += [self.value(each, depth + 1, "") for each in value.arguments]
            items += self._keywords(value.keywords, depth)
            return bracketed("fdl.Config(", items, ")", depth, prefix)
        if isinstance(value, Call) and value.sets:
            name = prefix.removesuffix("=")
            variable = name if name.isidentifier() else "part"
            self._assign(variable, dataclasses.replace(value, sets={}))
            for path, changed in value.sets.items():
                self._assign(f"{variable}.{path}", changed)
            return variable
        if isinstance(value, Call):
            self.imports["builders"] = ("mtf", "builders")
            function = f"{value.target.__module__.removeprefix('mtf.')}.{value.target.__name__}"
            items = [self.value(each, depth + 1, "") for each in value.arguments]
            items += self._keywords(value.keywords, depth)
            return bracketed(f"{function}(", items, ")", depth, prefix)
        if type(value) is int and abs(value) >= 10_000:
            return f"{value:_}"
        return super().value(value, depth, prefix)

    def _assign(self, name: str, value: Any) -> None:
        self.lines.append(f"    {name} = {self.value(value, 1, f'{name} = ')}\n")

    def _keywords(self, keywords: dict[str, Any], depth: int) -> list[str]:
        return [
            f"{name}={self.value(value, depth + 1, f'{name}=')}" for name, value in keywords.items()
        ]
