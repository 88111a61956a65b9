"""Checking a whole config, whoever set its values, and building the job from it."""

from __future__ import annotations

from typing import Any, NamedTuple

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
        found = _node_problems(path, node)
        wrong += found.wrong
        missing += found.missing
    if missing:
        wrong.append(
            "Missing required values; set each with --set PATH=VALUE:\n  " + "\n  ".join(missing)
        )
    return wrong


def find_refusals(config: fdl.Config) -> list[str]:
    """Returns what components say against their own values, each with its full path.

    A component whose own fields have problems, or one inside which something is refused, is left
    out: what it would say may only follow from that.
    """
    problems: list[str] = []
    refused: set[int] = set()
    for path, node in tree.components(config):
        inside = {id(inner) for _, inner in tree.components(list(node.__arguments__.values()))}
        if refused & inside or any(_node_problems(path, node)):
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


class _Found(NamedTuple):
    """What is wrong with the fields of one component, and which of them are missing."""

    wrong: list[str]
    missing: list[str]


def _node_problems(path: tuple[Any, ...], node: fdl.Buildable) -> _Found:
    target = fdl.get_callable(node)
    hints = types.type_hints(target)
    known = tree.parameters(node)
    found = _Found([], [])
    for field, value in node.__arguments__.items():
        where = format_path((*path, field))
        if field not in known and isinstance(field, str) and not tree.takes_any_name(node):
            found.wrong.append(
                f"{where}: {types.qualified_name(target)} has no field {field}."
                f"{did_you_mean(field, known)}"
            )
            continue
        try:
            types.convert(value, hints.get(str(field), Any))
        except types.Mismatch as mismatch:
            reasons = tree.field_metadata(node, str(field)).get("refused", {})
            reason = reasons.get(value, mismatch) if isinstance(value, str) else mismatch
            found.wrong.append(
                f"{where}: {reason} (It comes from {provenance.of_field(node, field)}.)"
            )
    if isinstance(node, fdl.Partial):
        return found
    for field, parameter in known.items():
        required = parameter.default is parameter.empty and field not in node.__arguments__
        if required or node.__arguments__.get(field) is fdl.NO_VALUE:
            declared = types.describe(hints.get(field, Any))
            found.missing.append(f"{format_path((*path, field))} ({declared})")
    return found


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
    problems = find_problems(config)
    if not problems:
        try:
            return fdl.build(config)
        except UserError:
            pass
    raise UserError(summarize([*problems, *find_refusals(config)]))
