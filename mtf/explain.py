"""What `RECIPE --help`, `RECIPE --help PATH` and `--list` print."""

from __future__ import annotations

import dataclasses
import inspect
import os
import textwrap
import typing
from typing import Any

import fiddle as fdl

from mtf.completion.values import of_type
from mtf.config import docstrings, lookup, provenance, tree, types
from mtf.config.overrides import find
from mtf.config.paths import NOWHERE, Path, follow, format_path, parse_path
from mtf.config.show import shown
from mtf.gin.names import binding_of

_WIDTH = 100


def listing(width: int | None) -> str:
    """Returns a line for each recipe and fiddler, cut to `width` columns unless it is None."""
    recipes, fiddlers = lookup.list_recipes(), lookup.list_fiddlers()
    longest = max(len(each.name) for each in [*recipes, *fiddlers])
    lines = [f"{each.name:<{longest}}  {each.summary}" for each in recipes]
    lines += ["", "Fiddlers, for --apply:"]
    lines += [f"{each.name:<{longest}}  {each.summary}" for each in fiddlers]
    return "".join(f"{_cut(line, width)}\n" for line in lines)


def recipe_help(name: str) -> str:
    """Returns what a recipe is, its arguments, the fields of its job, and commands."""
    what, _ = lookup.split_call(name)
    function = lookup.find_recipe(what)
    doc = docstrings.read(function)
    hints = types.type_hints(function)
    parameters = inspect.signature(function).parameters
    required = [f"{name}=…" for name, p in parameters.items() if p.default is p.empty]
    call = f'"{what}({", ".join(required)})"' if required else what
    commands = [f"python -m mtf.run {call}{end}" for end in ("", " --dry-run", " --print flat")]
    commands.append(f"python -m mtf.run {call} --help PATH")
    (job,) = typing.get_args(hints.get("return")) or (Any,)
    return _joined(
        f"{what} ({_place(function)})",
        doc.text,
        _section(
            "arguments",
            [
                _entry(name, hints.get(name), _shown(p.default), doc.items.get(name))
                for name, p in parameters.items()
            ],
        ),
        _section(
            f"fields of {types.describe(job)}",
            _fields(tree.complete(fdl.Config(job))) if isinstance(job, type) else [],
        ),
        _section("commands", [f"  {command}" for command in commands]),
    )


def path_help(config: fdl.Config, text: str) -> str:
    """Returns the meaning, type, default, value and origin of a field, and a component's fields.

    The path "" is that of the job. Raises UserError, which suggests similar paths, if there is no
    field `text`.
    """
    path = parse_path(text) if text else ()
    config, opened = _opened(tree.complete(config), path)
    value = follow(config, path)
    return _joined(
        *(_field(config, path, value, opened) if text else ()),
        *(_component(value) if isinstance(value, fdl.Buildable) else ()),
    )


def _field(config: fdl.Config, path: Path, value: Any, opened: list[str]) -> list[str]:
    """Returns the help of a field; `opened` are the components on its path that were None."""
    name = format_path(path)
    node, field, steps, declared = find(config, path, f"--help {name}")
    owner = fdl.get_callable(node)
    defaults = tree.arguments(tree.complete(fdl.Config(owner)))
    leaf = tree.Leaf(path, value, False, declared, node, str(field), steps)
    rows = {
        "type": types.describe(declared),
        "default": None if steps else _shown(defaults.get(field, fdl.NO_VALUE)),
        "value": _shown(value) or "not set",
        "origin": None if _shown(value) is None else provenance.of_leaf(leaf),
        "choices": _components(declared),
        "T5X": binding_of(name, fdl.get_callable(config).__name__, owner.__name__),
        "change": f"--set {' '.join([*opened, name])}=…",
    }
    if opened:
        rows["value"] = f"none, because {opened[0].partition('=')[0]} is None"
        rows["origin"] = None
    meaning = docstrings.read(owner).items.get(str(field), "")
    table = [f"{row:<8} {each}" for row, each in rows.items() if each]
    return [name, textwrap.fill(meaning, _WIDTH), "\n".join(table)]


def _components(declared: Any) -> str | None:
    """Returns the classes and builders that make a component of a type, or None."""
    return f"\n{' ' * 9}".join(each for each in of_type(declared) if each.startswith("@")) or None


def _component(node: fdl.Buildable) -> list[str]:
    target = fdl.get_callable(node)
    text = docstrings.read(target).text
    return [f"{types.qualified_name(target)}\n{text}".strip(), _section("fields", _fields(node))]


def _opened(config: fdl.Config, path: Path) -> tuple[fdl.Config, list[str]]:
    """Returns a config in which no component above the end of the path is None.

    Also returns the assignments that lead to it.
    """
    assignments = []
    for above in (path[:depth] for depth in range(1, len(path))):
        if follow(config, above) is None:
            place = find(config, above, "")
            for each in types.members(place.declared):
                if dataclasses.is_dataclass(each) and not place.steps:
                    assignments.append(f"{format_path(above)}=@{types.qualified_name(each)}")
                    setattr(place.node, place.field, fdl.Config(each))
                    config = tree.complete(config)
                    break
    return config, assignments


def _fields(node: fdl.Buildable) -> list[str]:
    """Returns an entry for each field of a component."""
    target = fdl.get_callable(node)
    hints, items = types.type_hints(target), docstrings.read(target).items
    values = tree.arguments(node)
    return [
        _entry(name, hints.get(name), _shown(values.get(name, fdl.NO_VALUE)), items.get(name))
        for name in tree.parameters(node)
    ]


def _entry(name: str, declared: Any, value: str | None, meaning: str | None) -> str:
    """Returns `name: type = value`, and the meaning below it."""
    line = f"  {name}: {types.describe(declared or Any)}" + (f" = {value}" if value else "")
    below = textwrap.indent(textwrap.fill(meaning or "", _WIDTH - 6), " " * 6)
    return f"{_cut(line, _WIDTH)}\n{below}".rstrip()


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def _shown(value: Any) -> str | None:
    """Returns a value as `--set` accepts it, and None if there is none."""
    is_none = any(value is each for each in (fdl.NO_VALUE, NOWHERE, inspect.Parameter.empty))
    return None if is_none else shown(value)


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *lines]) if lines else ""


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _place(function: Any) -> str:
    """Returns the file and line of a function, relative to the working directory if it is there."""
    code = inspect.unwrap(function).__code__
    name = os.path.relpath(code.co_filename)
    return f"{code.co_filename if name.startswith('..') else name}:{code.co_firstlineno}"
