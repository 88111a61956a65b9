"""A config as readable Python that makes the same config again."""

from __future__ import annotations

import enum
import keyword
import re
from collections import Counter
from typing import Any

import fiddle as fdl

from mtf.config import tree
from mtf.errors import UserError

_WIDTH = 100
_INDENT = "    "


def as_python(config: fdl.Config, title: str) -> str:
    """Returns a module whose function `config()` returns an equal config, and which runs it.

    Fields that have their default are left out. A component used twice is a variable.

    Args:
      config: what to write.
      title: first line of the module's docstring.
    """
    return _Writer(tree.complete(config)).module(title)


class _Writer:
    def __init__(self, config: fdl.Config) -> None:
        self.config = config
        self.imports: dict[str, Any] = {}
        self.variables: dict[int, str] = {}
        self.lines: list[str] = []

    def module(self, title: str) -> str:
        result = ""
        for value, field in _shared(self.config):
            name = self._variable(value, field)
            code = self._value(value, 1, f"{name} = ")
            self.lines.append(f"{_INDENT}{name} = {code}")
            self.variables[id(value)] = name
        result = self._component(self.config, 1, "return ")
        job = self._name(fdl.get_callable(self.config))
        title = title.replace("\\", "\\\\").replace('"""', "'''")
        imports = self._import_lines()
        parts = [
            f'"""{title}"""\n\n',
            "import fiddle as fdl\n\n",
            "".join(f"{line}\n" for line in imports),
            f"\n\ndef config() -> fdl.Config[{job}]:\n",
            "".join(f"{line}\n" for line in self.lines),
            f"{_INDENT}return {result}\n",
            '\n\nif __name__ == "__main__":\n    fdl.build(config()).run()\n',
        ]
        return "".join(parts)

    def _import_lines(self) -> list[str]:
        by_module: dict[str, list[str]] = {}
        for name, target in self.imports.items():
            top = _top(target)
            names = by_module.setdefault(target.__module__, [])
            names.append(top if name == top else f"{top} as {name}")
        lines: list[str] = []
        for module, names in sorted(by_module.items()):
            names.sort()
            line = f"from {module} import {', '.join(names)}"
            if len(line) > _WIDTH:
                inner = "".join(f"{_INDENT}{name},\n" for name in names)
                line = f"from {module} import (\n{inner})"
            lines.append(line)
        return lines

    def _variable(self, value: Any, field: str) -> str:
        base = field
        if isinstance(value, fdl.Buildable):
            name = getattr(fdl.get_callable(value), "__name__", "component")
            base = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        if not base.isidentifier() or keyword.iskeyword(base):
            base = "value"
        taken = {*self.variables.values(), *self.imports, "fdl", "config"}
        names = (f"{base}_{i}" if i else base for i in range(len(taken) + 1))
        return next(name for name in names if name not in taken)

    def _name(self, target: Any) -> str:
        """Returns how the code names a class or function, and sees that it is imported."""
        qualified = getattr(target, "__qualname__", "<")
        if "<" in qualified:
            raise UserError(
                f"{target!r} cannot be written as code: only classes and functions that a module "
                "defines at its top can."
            )
        if target.__module__ == "builtins":
            return qualified
        top, _, rest = qualified.partition(".")
        name = top
        while name in self.imports and not _same_import(self.imports[name], target):
            name = f"{target.__module__.replace('.', '_')}_{name}"
        self.imports[name] = target
        return f"{name}.{rest}" if rest else name

    def _value(self, value: Any, depth: int, prefix: str) -> str:
        if _can_be_shared(value) and id(value) in self.variables:
            return self.variables[id(value)]
        if isinstance(value, fdl.Buildable):
            return self._component(value, depth, prefix)
        if isinstance(value, enum.Enum):
            return f"{self._name(type(value))}.{value.name}"
        if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            return self._name(value)
        if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
            return f"float('{value}')"
        if isinstance(value, dict):
            items = [
                f"{_literal(key)}: {self._value(item, depth + 1, f'{key!r}: ')}"
                for key, item in value.items()
            ]
            return self._brackets("{", items, "}", depth, prefix)
        if isinstance(value, list):
            items = [self._value(item, depth + 1, "") for item in value]
            return self._brackets("[", items, "]", depth, prefix)
        if isinstance(value, tuple):
            items = [self._value(item, depth + 1, "") for item in value]
            close = ",)" if len(items) == 1 else ")"
            return self._brackets("(", items, close, depth, prefix)
        return _literal(value)

    def _component(self, node: fdl.Buildable, depth: int, prefix: str) -> str:
        arguments = fdl.ordered_arguments(node, include_equal_to_default=False)
        items = [self._name(fdl.get_callable(node))]
        for field, value in arguments.items():
            name = "" if isinstance(field, int) else f"{field}="
            items.append(name + self._value(value, depth + 1, name))
        opening = f"fdl.{type(node).__name__}("
        return self._brackets(opening, items, ")", depth, prefix)

    def _brackets(
        self, opening: str, items: list[str], closing: str, depth: int, prefix: str
    ) -> str:
        line = f"{opening}{', '.join(items)}{closing}"
        if "\n" not in line and len(_INDENT) * depth + len(prefix) + len(line) < _WIDTH:
            return line
        inner = _INDENT * (depth + 1)
        body = "".join(f"{inner}{item},\n" for item in items)
        return f"{opening}\n{body}{_INDENT * depth}{closing.removeprefix(',')}"


def _literal(value: Any) -> str:
    """Returns a literal, strings in double quotes where that needs no escape."""
    text = repr(value)
    if isinstance(value, str) and text[0] == "'" and '"' not in text:
        return f'"{text[1:-1]}"'
    return text


def _top(target: Any) -> str:
    return target.__qualname__.partition(".")[0]


def _same_import(a: Any, b: Any) -> bool:
    return (a.__module__, _top(a)) == (b.__module__, _top(b))


def _can_be_shared(value: Any) -> bool:
    """Returns whether it matters that a value is used twice; for plain tuples Python decides."""
    return isinstance(value, fdl.Buildable | dict | list)


def _shared(config: fdl.Config) -> list[tuple[Any, str]]:
    """Returns what is used more than once, inner things first, with the field it is in."""
    uses: Counter[int] = Counter()
    found: dict[int, tuple[Any, str]] = {}

    def visit(value: Any, field: str) -> None:
        if _can_be_shared(value):
            uses[id(value)] += 1
            if uses[id(value)] > 1:
                return
        if isinstance(value, fdl.Buildable):
            for name, item in value.__arguments__.items():
                visit(item, str(name))
        elif isinstance(value, dict):
            for item in value.values():
                visit(item, field)
        elif isinstance(value, list | tuple):
            for item in value:
                visit(item, field)
        if _can_be_shared(value):
            found[id(value)] = (value, field)

    visit(config, "config")
    return [found[key] for key in found if uses[key] > 1]
