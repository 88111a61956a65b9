"""Checking a whole config, whoever set its values, and building the job from it."""

from __future__ import annotations

from typing import Any

import fiddle as fdl

from mtf.config import provenance, tree, types
from mtf.config.overrides import summarize
from mtf.config.paths import format_path
from mtf.errors import UserError, did_you_mean


def find_problems(config: fdl.Config) -> list[str]:
    """Returns every wrong type, unknown field and missing required value, with its full path."""
    wrong: list[str] = []
    missing: list[str] = []
    for path, node in sorted_components(config):
        target = fdl.get_callable(node)
        hints = types.type_hints(target)
        known = tree.parameters(node)
        for field, value in node.__arguments__.items():
            where = format_path((*path, field))
            if field not in known and isinstance(field, str) and not tree.takes_any_name(node):
                wrong.append(
                    f"{where}: {types.qualified_name(target)} has no field {field}."
                    f"{did_you_mean(field, known)}"
                )
                continue
            try:
                types.convert(value, hints.get(str(field), Any))
            except types.Mismatch as mismatch:
                reasons = tree.field_metadata(node, str(field)).get("refused", {})
                reason = reasons.get(value, mismatch) if isinstance(value, str) else mismatch
                wrong.append(
                    f"{where}: {reason} (It comes from {provenance.of_field(node, field)}.)"
                )
        if isinstance(node, fdl.Partial):
            continue
        for field, parameter in known.items():
            required = parameter.default is parameter.empty and field not in node.__arguments__
            if required or node.__arguments__.get(field) is fdl.NO_VALUE:
                declared = types.describe(hints.get(field, Any))
                missing.append(f"{format_path((*path, field))} ({declared})")
    if missing:
        wrong.append(
            "Missing required values; set each with --set PATH=VALUE:\n  " + "\n  ".join(missing)
        )
    return wrong


def sorted_components(config: fdl.Config) -> list[tuple[tuple[Any, ...], fdl.Buildable]]:
    """Returns every component once, parents before children, in the order of the fields."""
    first: dict[int, tuple[tuple[Any, ...], fdl.Buildable]] = {}

    def visit(value: Any, path: tuple[Any, ...]) -> None:
        if isinstance(value, fdl.Buildable):
            if id(value) in first:
                return
            first[id(value)] = (path, value)
            for field, item in tree.arguments(value).items():
                visit(item, (*path, field))
        elif isinstance(value, dict):
            for key, item in value.items():
                visit(item, (*path, key))
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                visit(item, (*path, index))

    visit(config, ())
    return list(first.values())


def check(config: fdl.Config) -> None:
    """Checks types, names and required values of the whole config.

    Raises:
      UserError: all mistakes in one message.
    """
    problems = find_problems(config)
    if problems:
        raise UserError(summarize(problems))


def build(config: fdl.Config) -> Any:
    """Checks the config and builds what it describes.

    Raises:
      UserError: all mistakes in one message; one that a component finds in its own values stands
        under the component's path.
    """
    check(config)
    try:
        return fdl.build(config)
    except UserError:
        problems = _refusals(config)
    raise UserError(summarize(problems))


def _refusals(config: fdl.Config) -> list[str]:
    """Builds every component by itself, children first, and returns who refused and why."""
    problems: list[str] = []
    refused: set[int] = set()
    for path, node in tree.components(config):
        inside = {id(inner) for _, inner in tree.components(list(node.__arguments__.values()))}
        if refused & inside:
            refused.add(id(node))
            continue
        try:
            fdl.build(node)
        except UserError as error:
            refused.add(id(node))
            # Fiddle appends its own context to the text; the path says the same, shorter.
            text = str(getattr(error, "proxy_base_exception", error))
            where = format_path(path)
            named = not path or text.startswith((f"{where}.", f"{where}:"))
            problems.append(text if named else f"{where}: {text}")
    return problems
