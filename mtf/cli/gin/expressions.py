"""Defines expressions that can be evaluated to a config or converted to source code.

An expression is a `Call`, a `Constant`, an `fdl.Config` whose arguments are expressions, or any
other value.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from fiddle import daglish

from mtf.config.codegen import Writer, bracketed
from mtf.config.paths import follow


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
class Constant:
    """A constant that a package exports, such as `mtf.partitioning.FULLY_SHARDED_AXIS_RULES`."""

    package: str
    name: str


def evaluate(expression: Any) -> Any:
    """Evaluates an expression to a config or another value."""

    def evaluated(value: Any, state: daglish.State) -> Any:
        if isinstance(value, Constant):
            return getattr(importlib.import_module(value.package), value.name)
        if not isinstance(value, Call):
            return state.map_children(value)
        keywords = {name: evaluate(each) for name, each in value.keywords.items()}
        made = value.target(*value.arguments, **keywords)
        for path, changed in value.sets.items():
            *parents, field = path.split(".")
            setattr(follow(made, tuple(parents)), field, evaluate(changed))
        return made

    return daglish.MemoizedTraversal.run(evaluated, expression)


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
            for field, each in value.keywords.items():
                items.append(f"{field}={self.value(each, depth + 1, f'{field}=')}")
            return bracketed(f"{function}(", items, ")", depth, prefix)
        if type(value) is int and abs(value) >= 10_000:
            return f"{value:_}"
        return super().value(value, depth, prefix)

    def _assign(self, name: str, value: Any) -> None:
        self.lines.append(f"    {name} = {self.value(value, 1, f'{name} = ')}\n")
