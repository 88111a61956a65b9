"""Derives a command's options from the fields of a settings class and their descriptions."""

from __future__ import annotations

import argparse
import dataclasses
import re
import typing
from collections.abc import Collection, Mapping
from typing import Any, Literal

from mtf.base.errors import UserError
from mtf.config import docstrings, types

_METAVARS = {int: "N", float: "S", dict: "NAME=VALUE"}


def option(field: str) -> str:
    """Returns the option of a field, such as `--max-rows` for `max_rows`."""
    return f"--{field.replace('_', '-')}"


def add_options(
    parser: argparse._ActionsContainer,
    settings: Any,
    positional: Mapping[str, str] | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Adds an option for each field of a dataclass (or those in `only`) and of its components.

    The type and the choices come from the annotation of the field, or from its metadata "choices"
    (a function that returns them with descriptions), the help from the docstring of the class. For
    an optional number with a default, 0 stands for None. The first field in `positional`, which
    maps fields to their names in the usage, must be given. Fields that are not given are absent
    from the parsed namespace.
    """
    items = docstrings.read(settings).items
    for field, declared, is_optional in _fields(settings):
        if only is not None and field.name not in only:
            continue
        text = items[field.name].removesuffix(".")
        if dataclasses.is_dataclass(declared):
            add_options(parser.add_argument_group(text), declared)
            continue
        origin = typing.get_origin(declared) or declared
        choices = field.metadata.get("choices", dict)()
        kind: dict[str, Any] = {"default": argparse.SUPPRESS}
        if origin is bool:
            is_switch = field.default is False
            kind["action"] = "store_true" if is_switch else argparse.BooleanOptionalAction
        elif choices or origin is Literal:
            kind["choices"] = [*choices, *typing.get_args(declared)]
            text = "; ".join([text, *map(": ".join, choices.items())])
        else:
            metavar = _METAVARS.get(origin, field.name.rpartition("_")[2].upper())
            kind["metavar"] = field.metadata.get("metavar", metavar)
            kind |= {"type": origin} if origin in (int, float) else {}
            kind |= {"nargs": "+"} if origin in (tuple, dict) else {}
        kind["help"] = _help(text, field.default, is_optional)
        if positional and field.name in positional:
            kind |= {"metavar": positional[field.name]}
            kind |= {} if field.name == next(iter(positional)) else {"nargs": "?"}
            parser.add_argument(field.name, **kind)
        else:
            parser.add_argument(option(field.name), **kind)


def _fields(settings: Any) -> list[tuple[dataclasses.Field[Any], Any, bool]]:
    """Returns (field, its type without None, whether it may be None) for each field."""
    members = {name: types.members(x) for name, x in types.type_hints(settings).items()}
    fields = dataclasses.fields(settings)
    return [(field, members[field.name][0], len(members[field.name]) > 1) for field in fields]


def _help(text: str, default: Any, is_optional: bool) -> str:
    """Returns a field's description in the words of an option, with the default."""
    text = text.removeprefix("whether to ")
    if default is None:
        text = re.sub("; None for (.*)$", r" (default: \1)", text)
    elif isinstance(default, int | float | str) and not isinstance(default, bool):
        text = text.replace("; None for ", "; 0 for ") if is_optional else text
        text += f" (default: {default})".replace(".0)", ")")
    return text.replace("%", "%%")


def read_options(given: Mapping[str, Any], settings: Any) -> Any:
    """Creates a settings object from parsed options; raises UserError for a missing field."""
    items, values = docstrings.read(settings).items, dict[str, Any]()
    for field, declared, is_optional in _fields(settings):
        name, value = field.name, given.get(field.name)
        if dataclasses.is_dataclass(declared):
            if any(each.name in given for each in dataclasses.fields(declared)):
                values[name] = read_options(given, declared)
        elif name not in given:
            if field.default is field.default_factory is dataclasses.MISSING:
                raise UserError(f"{option(name)} is missing; expected {items[name].rstrip('.')}")
        elif typing.get_origin(declared) is dict:
            values[name] = dict(text.partition("=")[::2] for text in given[name])
            if wrong := [text for text in given[name] if not all(text.partition("=")[::2])]:
                raise UserError(
                    f"{option(name)} {wrong[0]}: expected NAME=VALUE, such as train={wrong[0]}"
                )
        elif isinstance(value, list):
            values[name] = tuple(value)
        else:
            values[name] = None if value == 0 and is_optional and field.default else value
    return settings(**values)
