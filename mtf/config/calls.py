"""Recipes, builders and fiddlers called with the arguments that the command line gives."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import fiddle as fdl

from mtf.config import lookup, tree, types, values
from mtf.config.types import Mismatch
from mtf.errors import UserError, did_you_mean

_AT = "__component__."


def resolve(name: str) -> fdl.Config:
    """Calls the recipe `package.module.recipe(kw=…)` or `file.py:recipe(kw=…)`.

    Raises:
      UserError: no such recipe, wrong arguments, or it returns no config.
    """
    function, arguments = lookup.find_recipe(name)
    what = values.split_call(name)[0]
    config = lookup.call_user_code(function, parse_arguments(function, arguments, what), what)
    if not isinstance(config, fdl.Config):
        raise UserError(
            f"{what} returns a {type(config).__name__}. A recipe returns a fdl.Config "
            "of a job, as in: def my_recipe() -> fdl.Config[mtf.jobs.Train]."
        )
    return config


def make_component(text: str) -> fdl.Buildable:
    """Makes the component that `dotted.builder(kw=…)` or `dotted.Class(kw=…)` stands for.

    Raises:
      UserError: no such builder, wrong arguments, or it returns no config.
    """
    name, arguments = values.split_call(text)
    builder = lookup.find(name, "builder")
    if not callable(builder):
        raise UserError(f"{name} is a {type(builder).__name__}, not a builder.")
    if isinstance(builder, type):
        # Fields without a default may still be set by a later override.
        given = parse_arguments(builder, arguments, name, complete=False)
        return tree.complete(fdl.Config(builder, **given))
    parsed = parse_arguments(builder, arguments, name)
    made = lookup.call_user_code(builder, parsed, name, tracked=False)
    if not isinstance(made, fdl.Buildable):
        raise UserError(
            f"{name} returns a {type(made).__name__}. A builder returns a fdl.Config, or is the "
            "class itself."
        )
    return tree.complete(made)


def parse_arguments(
    function: Any, arguments: str, what: str, *, skip: int = 0, complete: bool = True
) -> dict[str, Any]:
    """Reads `(kw=literal, kw=@builder, …)` against the annotations of `function`.

    Args:
      function: what will be called.
      arguments: the text with its brackets, or "".
      what: names the call in messages.
      skip: parameters at the front that are given otherwise.
      complete: whether all that have no default must be given.

    Raises:
      UserError: all mistakes in one message.
    """
    known = dict(list(inspect.signature(function).parameters.items())[skip:])
    hints = types.type_hints(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
    parsed: dict[str, Any] = {}
    problems: list[str] = []
    for name, text in keywords(arguments, what).items():
        if name not in known and not takes_any:
            hint = did_you_mean(name, known)
            problems.append(
                f"{what} has no argument {name}; it has: {', '.join(known) or 'none'}.{hint}"
            )
            continue
        declared = hints.get(name, Any)
        try:
            if text.startswith("@"):
                parsed[name] = types.convert(make_component(text[1:]), declared)
            else:
                parsed[name] = values.parse(text, declared)
        except (Mismatch, UserError) as error:
            problems.append(f"{what}: {name}={text}: {error}")
    if problems:
        raise UserError("\n".join(problems))
    missing = [
        f"{name} ({types.describe(hints.get(name, Any))})"
        for name, parameter in known.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in parsed
    ]
    if missing and complete:
        raise UserError(
            f"{what} needs {', '.join(missing)}. Write {what}({missing[0].split()[0]}=…)"
        )
    return parsed


def keywords(arguments: str, what: str) -> dict[str, str]:
    """Splits `(a=1, b=@x.y(c=2))` into names and the texts of their values."""
    if not arguments:
        return {}
    # `@` at the start of a value is not Python; a name in its place lets Python find the end.
    text = "f" + arguments.replace("=@", f"={_AT}")
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        call = None
    if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
        raise UserError(
            f"{what}: {arguments} is not a list of keyword arguments. Write {what}(name=value)."
        )
    return {
        str(keyword.arg): (ast.get_source_segment(text, keyword.value) or "").replace(_AT, "@")
        for keyword in call.keywords
    }
