"""Generates readable Python code that creates a given config and runs its job.

Fiddle's code generator is not used, because it imports modules under aliases and omits the job.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import fiddle as fdl
from fiddle import daglish

from mtf.base.errors import UserError
from mtf.config import tree, types

_WIDTH = 100
_INDENT = "    "


def as_python(config: fdl.Config, title: str, name: str = "config") -> str:
    """Returns a script that recreates the config in a function `name` and runs its job."""
    # A job does not record which calls produced its values; `mtf.config.run` stores the config.
    imports = "from mtf.config import run\n"
    return write_module(
        tree.complete(config), title, run=f"run({name}())", imports=imports, name=name
    )


def write_module(
    config: fdl.Config, title: str, *, run: str, imports: str, name: str = "config"
) -> str:
    """Returns the code of a module with a function that recreates the given config.

    Args:
      config: the config to recreate; values that equal their defaults are omitted.
      title: the docstring of the module.
      run: the statement that runs the job.
      imports: import statements to put before the generated ones.
      name: the name of the function.
    """
    writer = Writer()
    lines = []
    for value, field in _shared(config):
        variable = writer.variable(value, field)
        lines.append(f"{_INDENT}{variable} = {writer.value(value, 1, f'{variable} = ')}\n")
        writer.variables[id(value)] = variable
    result = writer.value(config, 1, "return ")
    job = writer.name(fdl.get_callable(config))
    raw, title = "r" * ("\\" in title), title.replace('"""', "'''")
    return (
        f'{raw}"""{title}"""\n\nimport fiddle as fdl\n\n{imports}{writer.import_lines()}'
        f"\n\ndef {name}() -> fdl.Config[{job}]:\n{''.join(lines)}{_INDENT}return {result}\n"
        f'\n\nif __name__ == "__main__":\n    {run}\n'
    )


class Writer:
    """Converts values to Python expressions and collects the imports that the expressions need."""

    def __init__(self) -> None:
        # Name in the code → (module, name in the module).
        self.imports: dict[str, tuple[str, str]] = {}
        self.variables: dict[int, str] = {}  # id of a value that is used more than once → name

    def import_lines(self) -> str:
        """Returns the import statements for the expressions written so far."""
        by_module: dict[str, list[str]] = {}
        for name, (module, top) in self.imports.items():
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
        """Returns an unused variable name for a value of the given field."""
        base = field
        if isinstance(value, fdl.Buildable):
            name = getattr(fdl.get_callable(value), "__name__", "component")
            base = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        taken = {*self.variables.values(), *self.imports, "fdl", "config"}
        if isinstance(value, fdl.Buildable):  # The function may be called `base`; do not shadow it.
            taken.add(getattr(fdl.get_callable(value), "__name__", ""))
        names = (f"{base}_{i}" if i else base for i in range(len(taken) + 1))
        return next(name for name in names if name not in taken)

    def name(self, target: Any) -> str:
        """Returns the expression for a class or function, and records the import that it needs."""
        qualified = getattr(target, "__qualname__", "<")
        if "<" in qualified:
            raise UserError(
                f"{target!r} cannot be written as code. Use classes and functions that are defined "
                "at the top level of a module."
            )
        if target.__module__ == "builtins":
            return qualified
        name, dot, rest = qualified.partition(".")
        wanted = types.public_module(target.__module__, target.__qualname__), name
        while name in self.variables.values() or self.imports.get(name, wanted) != wanted:
            name = f"{target.__module__.replace('.', '_')}_{name}"
        self.imports[name] = wanted
        return f"{name}{dot}{rest}"

    def value(self, value: Any, depth: int, prefix: str) -> str:
        """Returns the expression for a value. `bracketed` explains `depth` and `prefix`."""
        if _can_be_shared(value) and id(value) in self.variables:
            return self.variables[id(value)]
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
    """Returns bracketed items on one line, or with one item per line if the line would be too long.

    Args:
      opening: the opening bracket and any text before it.
      items: the expressions in the brackets.
      closing: the closing bracket, or ",)" for a tuple with one element.
      depth: the indentation level of the line.
      prefix: the text that precedes `opening` on the line.
    """
    line = f"{opening}{', '.join(items)}{closing}"
    if "\n" not in line and len(_INDENT) * depth + len(prefix) + len(line) < _WIDTH:
        return line
    body = "".join(f"{_INDENT * (depth + 1)}{item},\n" for item in items)
    return f"{opening}\n{body}{_INDENT * depth}{closing.removeprefix(',')}"


def literal(value: Any) -> str:
    """Returns a value as a literal. Strings are double-quoted unless they contain double quotes."""
    text = repr(value)
    if isinstance(value, str) and text[0] == "'" and '"' not in text:
        return f'"{text[1:-1]}"'
    return text


def _can_be_shared(value: Any) -> bool:
    """Returns whether a value must be one object in all its uses: a component, dict or list."""
    return isinstance(value, fdl.Buildable | dict | list)


def _shared(config: fdl.Config) -> list[tuple[Any, str]]:
    """Returns a (value, field name) pair for each value used more than once, inner values first."""
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
