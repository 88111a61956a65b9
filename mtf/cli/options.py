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
    *,
    required: Collection[str] = (),
    only: Collection[str] | None = None,
) -> None:
    """Adds an option for each field of a settings class, and for each field of its components.

    The type and the choices come from the field's annotation or the metadata "choices", the help
    from the docstring of the class. For an optional number with a default, 0 stands for None.
    Fields that are not given are absent from the parsed namespace.

    Args:
      parser: the parser of the command.
      settings: a dataclass.
      positional: dict mapping the fields that are arguments without an option to their names in the
        help. All but the first may be missing.
      required: the options that must be given.
      only: the fields to add; None for all.
    """
    positional = positional or {}
    hints, items = types.type_hints(settings), docstrings.read(settings).items
    for field in dataclasses.fields(settings):
        if only is not None and field.name not in only:
            continue
        declared, is_optional = _declared(hints[field.name])
        meaning = items[field.name].removesuffix(".")
        if dataclasses.is_dataclass(declared):
            add_options(parser.add_argument_group(meaning), declared)
            continue
        is_switch = declared is bool and field.default is False
        kind: dict[str, Any] = {"default": argparse.SUPPRESS}
        if is_switch:
            kind["action"] = "store_true"
        elif declared is bool:
            kind["action"] = argparse.BooleanOptionalAction
        else:
            origin = typing.get_origin(declared) or declared
            choices = field.metadata.get("choices")
            if origin is Literal:
                kind["choices"] = typing.get_args(declared)
            elif choices is not None:
                kind["choices"] = list(choices)
                meaning += "; " + "; ".join(f"{name}: {text}" for name, text in choices.items())
            else:
                last = field.name.rpartition("_")[2].upper()
                kind["metavar"] = field.metadata.get("metavar", _METAVARS.get(origin, last))
            if origin in (tuple, dict):
                kind["nargs"] = "+"
            if origin in (int, float):
                kind["type"] = origin
        kind["help"] = _help(meaning, field.default, is_optional)
        if field.name in positional:
            nargs = {} if field.name == next(iter(positional)) else {"nargs": "?"}
            parser.add_argument(field.name, **{**kind, "metavar": positional[field.name], **nargs})
        else:
            parser.add_argument(option(field.name), required=field.name in required, **kind)


def _declared(hint: Any) -> tuple[Any, bool]:
    """Returns the type of a field without None, and whether it may be None."""
    members = types.members(hint)
    return members[0], len(members) > 1


def _help(meaning: str, default: Any, is_optional: bool) -> str:
    """Returns a field's description in the words of an option."""
    text = meaning.removeprefix("whether to ")
    if default is None:
        text = re.sub("; None for (.*)$", r" (default: \1)", text)
    elif not isinstance(default, bool | tuple) and default is not dataclasses.MISSING:
        text = text.replace("; None for ", "; 0 for ") if is_optional else text
        text += (
            f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
        )
    return text.replace("%", "%%")


def read_options(given: Mapping[str, Any], settings: Any) -> Any:
    """Returns the settings with the given values, whose other fields have their defaults.

    Raises UserError if a value is invalid, or if a component lacks a field that has no default.
    """
    hints, items = types.type_hints(settings), docstrings.read(settings).items
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        declared, is_optional = _declared(hints[field.name])
        if dataclasses.is_dataclass(declared):
            inside = {each.name for each in dataclasses.fields(declared)} & given.keys()
            values |= {field.name: read_options(given, declared)} if inside else {}
        elif field.name in given:
            value = given[field.name]
            if isinstance(value, list):
                is_dict = typing.get_origin(declared) is dict
                value = _pairs(option(field.name), value) if is_dict else tuple(value)
            values[field.name] = None if value == 0 and is_optional and field.default else value
        elif field.default is field.default_factory is dataclasses.MISSING:
            name = option(field.name)
            raise UserError(f"{name} is missing; expected {items[field.name].removesuffix('.')}")
    return settings(**values)


def _pairs(name: str, texts: list[str]) -> dict[str, str]:
    wrong = [text for text in texts if not all(text.partition("=")[::2])]
    if wrong:
        raise UserError(f"{name} {wrong[0]}: expected NAME=VALUE")
    return dict(text.partition("=")[::2] for text in texts)
