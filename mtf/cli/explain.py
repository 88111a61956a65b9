"""Formats the output of `RECIPE --help`, `RECIPE --help PATH` and `--list`."""

from __future__ import annotations

import inspect
import os
import textwrap
import typing
from typing import Any

import fiddle as fdl

from mtf.cli.command import HELP_WIDTH, filled, wrapped
from mtf.config import docstrings, lookup, provenance, tree, types
from mtf.config.overrides import find
from mtf.config.paths import NOWHERE, Path, follow, format_path, parse_path
from mtf.config.show import shown


def listing() -> str:
    """Returns the output of `--list`, which has one line for each recipe and each fiddler."""
    recipes, fiddlers = lookup.list_recipes(), lookup.list_fiddlers()
    longest = max(len(each.name) for each in [*recipes, *fiddlers])
    lines = [f"{each.name:<{longest}}  {each.summary}" for each in recipes]
    lines += ["", "Fiddlers, for --apply:"]
    lines += [f"{each.name:<{longest}}  {each.summary}" for each in fiddlers]
    return "".join(f"{line}\n" for line in lines)


def recipe_help(name: str) -> str:
    """Returns the help text of a recipe, with its arguments, job fields and example commands."""
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
        f"{what} ({_location(function)})",
        filled(doc.text),
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
    """Returns a description of the field at the path `text`: type, default, value and origin.

    If the field is a component, its fields are listed too. The path "" refers to the job. If the
    config has no such field, raises a UserError that suggests similar paths.
    """
    path = parse_path(text) if text else ()
    config = tree.complete(config)
    value = follow(config, path)
    parts = _field(config, path, value) if text else []
    if isinstance(value, fdl.Buildable):
        target = fdl.get_callable(value)
        about = f"{types.qualified_name(target)}\n{filled(docstrings.read(target).text)}"
        parts += [about.strip(), _section("fields", _fields(value))]
    return _joined(*parts)


def _field(config: fdl.Config, path: Path, value: Any) -> list[str]:
    name = format_path(path)
    leaf = find(config, path, f"--help {name}")
    field, declared, owner = leaf.field, leaf.declared, fdl.get_callable(leaf.node)
    defaults = tree.arguments(tree.complete(fdl.Config(owner)))
    rows = {
        "type": types.describe(declared),
        "default": None if leaf.steps else _shown(defaults.get(field, fdl.NO_VALUE)),
        "value": _shown(value) or "not set",
        "origin": None if _shown(value) is None else provenance.of_leaf(leaf),
        "choices": f"\n{' ' * 9}".join(x for x in types.choices(declared) if x.startswith("@")),
        "change": f"--set {name}=…",
    }
    meaning = docstrings.read(owner).items.get(str(field), "")
    table = [wrapped(f"{row:<8} {each}", indent=" " * 9) for row, each in rows.items() if each]
    return [name, wrapped(meaning), "\n".join(table)]


def _fields(node: fdl.Buildable) -> list[str]:
    """Returns a help entry for each field of a component."""
    target = fdl.get_callable(node)
    hints, items = types.type_hints(target), docstrings.read(target).items
    values = tree.arguments(node)
    return [
        _entry(name, hints.get(name), _shown(values.get(name, fdl.NO_VALUE)), items.get(name))
        for name in tree.parameters(node)
    ]


def _entry(name: str, declared: Any, value: str | None, meaning: str | None) -> str:
    """Returns the line `name: type = value`, followed by indented lines with the meaning."""
    line = f"  {name}: {types.describe(declared or Any)}" + (f" = {value}" if value else "")
    below = textwrap.indent(wrapped(meaning or "", HELP_WIDTH - 6), " " * 6)
    return f"{wrapped(line, indent=' ' * 4)}\n{below}".rstrip()


def _shown(value: Any) -> str | None:
    """Returns a value in the syntax of `--set`, or None if it is not set."""
    is_none = any(value is each for each in (fdl.NO_VALUE, NOWHERE, inspect.Parameter.empty))
    return None if is_none else shown(value)


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *lines]) if lines else ""


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _location(function: Any) -> str:
    """Returns a function's `FILE:LINE`; FILE is relative if it is in the working directory."""
    code = inspect.unwrap(function).__code__
    name = os.path.relpath(code.co_filename)
    return f"{code.co_filename if name.startswith('..') else name}:{code.co_firstlineno}"
