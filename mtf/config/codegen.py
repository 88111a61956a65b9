"""Writes a config as readable Python code that creates the same config.

Fiddle's code generation imports modules under aliases, and its code does not run the job.
"""

from __future__ import annotations

import enum
import inspect
import keyword
import math
import re
from collections import Counter
from typing import Any

import fiddle as fdl
from fiddle import daglish

from mtf.config import tree, types
from mtf.errors import UserError

_WIDTH = 100
_INDENT = "    "


def as_python(config: fdl.Config, title: str) -> str:
    """Returns a module whose function `config()` returns an equal config, and runs the job."""
    config = tree.complete(config)
    if any(inspect.isroutine(fdl.get_callable(node)) for _, node in tree.components(config)):
        # The job does not say how the results of calls were made.
        return write_module(
            config, title, run="run(config())", imports="from mtf.config import run\n"
        )
    return write_module(config, title, run="fdl.build(config()).run()")


def write_module(config: fdl.Config, title: str, *, run: str, imports: str = "") -> str:
    """Returns a module whose function `config()` returns an equal config.

    Args:
      config: the config, whose defaults are not written.
      title: first line of the docstring.
      run: statement that runs the config.
      imports: lines of imports that must come before those of the config.
    """
    writer = _Writer()
    lines = []
    for value, field in _shared(config):
        name = writer.variable(value, field)
        lines.append(f"{_INDENT}{name} = {writer.value(value, 1, f'{name} = ')}\n")
        writer.variables[id(value)] = name
    result = writer.value(config, 1, "return ")
    job = writer.name(fdl.get_callable(config))
    title = title.replace("\\", "\\\\").replace('"""', "'''")
    return (
        f'"""{title}"""\n\nimport fiddle as fdl\n\n{imports}{writer.import_lines()}'
        f"\n\ndef config() -> fdl.Config[{job}]:\n{''.join(lines)}{_INDENT}return {result}\n"
        f'\n\nif __name__ == "__main__":\n    {run}\n'
    )


class _Writer:
    """Writes values as expressions."""

    def __init__(self) -> None:
        self.imports: dict[str, Any] = {}  # name in the code → class or function
        self.variables: dict[int, str] = {}  # id of a value that is used twice → its variable

    def import_lines(self) -> str:
        by_module: dict[str, list[str]] = {}
        for name, target in self.imports.items():
            module, top = _module_and_top(target)
            names = by_module.setdefault(module, [])
            names.append(top if name == top else f"{top} as {name}")
        lines = []
        for module, names in sorted(by_module.items()):
            names.sort()
            line = f"from {module} import {', '.join(names)}\n"
            if len(line) > _WIDTH + 1:
                inner = "".join(f"{_INDENT}{name},\n" for name in names)
                line = f"from {module} import (\n{inner})\n"
            lines.append(line)
        return "".join(lines)

    def variable(self, value: Any, field: str) -> str:
        """Returns an unused variable name for a value of that field."""
        base = field
        if isinstance(value, fdl.Buildable):
            name = getattr(fdl.get_callable(value), "__name__", "component")
            base = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        if not base.isidentifier() or keyword.iskeyword(base):
            base = "value"
        taken = {*self.variables.values(), *self.imports, "fdl", "config"}
        if isinstance(value, fdl.Buildable):  # A function's name may be the base itself.
            taken.add(getattr(fdl.get_callable(value), "__name__", ""))
        names = (f"{base}_{i}" if i else base for i in range(len(taken) + 1))
        return next(name for name in names if name not in taken)

    def name(self, target: Any) -> str:
        """Returns the name of a class or function in the code, and adds its import."""
        qualified = getattr(target, "__qualname__", "<")
        if "<" in qualified:
            raise UserError(
                f"{target!r} cannot be written as code. Use classes and functions that are defined "
                "at the top level of a module."
            )
        if target.__module__ == "builtins":
            return qualified
        name, dot, rest = qualified.partition(".")
        wanted = _module_and_top(target)
        while name in self.variables.values() or (
            name in self.imports and _module_and_top(self.imports[name]) != wanted
        ):
            name = f"{target.__module__.replace('.', '_')}_{name}"
        self.imports[name] = target
        return f"{name}{dot}{rest}"

    def value(self, value: Any, depth: int, prefix: str) -> str:
        """Returns the expression of a value, to be written after `prefix` at a depth."""
        if _can_be_shared(value) and id(value) in self.variables:
            return self.variables[id(value)]
        if isinstance(value, enum.Enum):
            return f"{self.name(type(value))}.{value.name}"
        if isinstance(value, fdl.Buildable):
            opening, closing = f"fdl.{type(value).__name__}(", ")"
            items = [self.name(fdl.get_callable(value))]
            for field, item in fdl.ordered_arguments(value, include_equal_to_default=False).items():
                name = "" if isinstance(field, int) else f"{field}="
                items.append(name + self.value(item, depth + 1, name))
        elif isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            return self.name(value)
        elif isinstance(value, float) and not math.isfinite(value):
            return f"float('{value}')"
        elif isinstance(value, dict):
            opening, closing = "{", "}"
            items = [
                f"{literal(key)}: {self.value(item, depth + 1, f'{key!r}: ')}"
                for key, item in value.items()
            ]
        elif isinstance(value, list | tuple):
            opening, closing = ("[", "]") if isinstance(value, list) else ("(", ")")
            items = [self.value(item, depth + 1, "") for item in value]
        else:
            return literal(value)
        closing = f",{closing}" if isinstance(value, tuple) and len(value) == 1 else closing
        return bracketed(opening, items, closing, depth, prefix)


def bracketed(opening: str, items: list[str], closing: str, depth: int, prefix: str) -> str:
    """Returns items in brackets on one line, or an item per line if that is too long.

    The text stands after `prefix`, at a depth of indentation. `closing` of a tuple of one is ",)".
    """
    line = f"{opening}{', '.join(items)}{closing}"
    if "\n" not in line and len(_INDENT) * depth + len(prefix) + len(line) < _WIDTH:
        return line
    body = "".join(f"{_INDENT * (depth + 1)}{item},\n" for item in items)
    return f"{opening}\n{body}{_INDENT * depth}{closing.removeprefix(',')}"


def literal(value: Any) -> str:
    """Returns a literal; strings are in double quotes unless that needs escapes."""
    text = repr(value)
    if isinstance(value, str) and text[0] == "'" and '"' not in text:
        return f'"{text[1:-1]}"'
    return text


def _module_and_top(target: Any) -> tuple[str, str]:
    """Returns the module of a class or function, and the top-level name to import."""
    name = target.__qualname__
    return types.public_module(target.__module__, name), name.partition(".")[0]


def _can_be_shared(value: Any) -> bool:
    """Returns whether two uses of a value must stay the same object."""
    return isinstance(value, fdl.Buildable | dict | list)


def _shared(config: fdl.Config) -> list[tuple[Any, str]]:
    """Returns the values that are used more than once, inner ones first, with their fields."""
    uses: Counter[int] = Counter()
    found: dict[int, tuple[Any, str]] = {}

    def visit(value: Any, state: daglish.State) -> None:
        uses[id(value)] += 1
        if _can_be_shared(value) and uses[id(value)] > 1:
            return
        for _ in state.yield_map_child_values(value, ignore_leaves=True):
            pass
        if _can_be_shared(value):
            fields = (step.name for step in state.current_path if isinstance(step, daglish.Attr))
            found[id(value)] = (value, ["config", *fields][-1])

    visit(config, daglish.BasicTraversal(visit, config).initial_state())
    return [found[key] for key in found if uses[key] > 1]
