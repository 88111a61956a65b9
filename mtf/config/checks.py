"""Checks all values of a config and builds its job."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from mtf.base.errors import UserError, did_you_mean
from mtf.config import provenance, tree, types
from mtf.config.paths import Path, format_path
from mtf.storage import USER_REFUSED
from mtf.storage.errors import has_user


def summarize(problems: Sequence[str]) -> str:
    """Joins error messages into one message. A single message is returned unchanged."""
    if len(problems) == 1:
        return problems[0]
    lines = (problem.replace("\n", "\n    ") for problem in problems)
    return f"{len(problems)} mistakes:\n" + "\n".join(f"  {line}" for line in lines)


def find_problems(config: fdl.Config) -> list[str]:
    """Returns messages, with paths, about wrong types, unknown fields and missing values."""
    wrong: list[str] = []
    missing: list[str] = []
    for path, node in tree.components(config, parents_first=True):
        wrong += _wrong_fields(path, node)
        missing += _missing_fields(path, node)
    if missing:
        lines = "\n  ".join(missing)
        wrong.append(f"Missing required values; set each with --set PATH=VALUE:\n  {lines}")
    return wrong


def find_refusals(config: fdl.Config) -> list[str]:
    """Builds each component separately and returns the messages of all UserErrors, with full paths.

    Skips a component if `find_problems` reports a problem in one of its fields, or if it contains a
    skipped or failed component, in which case its error may only be a consequence.
    """
    problems: list[str] = []
    refused: set[int] = set()
    for path, node in tree.components(config):
        inside = {id(inner) for _, inner in tree.components(node)}
        if refused & inside or _wrong_fields(path, node) or _missing_fields(path, node):
            refused.add(id(node))
            continue
        try:
            fdl.build(node)
        except UserError as error:
            refused.add(id(node))
            # Fiddle appends its own context to the message. Show the original message and the path.
            text = str(getattr(error, "proxy_base_exception", error))
            where = format_path(path)
            named = not path or text.startswith((f"{where}.", f"{where}:"))
            problems.append(text if named else f"{where}: {text}")
    return problems


def _wrong_fields(path: Path, node: fdl.Buildable) -> list[str]:
    target = fdl.get_callable(node)
    hints = types.type_hints(target)
    known, takes_any = tree.parameters(node), node.__signature_info__.has_var_keyword
    wrong = []
    for field, value in node.__arguments__.items():
        where = format_path((*path, field))
        if field not in known and isinstance(field, str) and not takes_any:
            owner = types.qualified_name(target)
            wrong.append(f"{where}: {owner} has no field {field}.{did_you_mean(field, known)}")
            continue
        if isinstance(value, str | list | tuple | dict) and has_user(repr(value)):
            wrong.append(f"{where}: {USER_REFUSED}.")
            continue
        try:
            types.convert(value, hints.get(str(field), Any))
        except types.Mismatch as mismatch:
            reason = tree.refusal(node, field, value) or mismatch
            origin = provenance.of_field(node, field)
            wrong.append(f"{where}: {reason} (The value comes from {origin}.)")
    return wrong


def _missing_fields(path: Path, node: fdl.Buildable) -> list[str]:
    if isinstance(node, fdl.Partial):
        return []
    hints = types.type_hints(fdl.get_callable(node))
    return [
        f"{format_path((*path, name))} ({types.describe(hints.get(name, Any))})"
        for name, parameter in tree.parameters(node).items()
        if (value := node.__arguments__.get(name, parameter.default)) is parameter.empty
        or value is fdl.NO_VALUE
    ]


def build(config: fdl.Config) -> Any:
    """Checks a config and builds its job. Raises a single UserError that lists all mistakes."""
    problems = find_problems(config)
    with contextlib.suppress(UserError):
        if not problems:
            return fdl.build(config)
    raise UserError(summarize([*problems, *find_refusals(config)]))
