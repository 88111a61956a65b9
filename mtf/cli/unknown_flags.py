"""Suggests replacements for flags that `mtf.run` does not have."""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
from collections.abc import Mapping, Sequence

import fiddle as fdl

from mtf.base.errors import UserError, suggestion
from mtf.cli.command import option_names, quoted
from mtf.cli.flags import Flag
from mtf.cli.transformers_flags import translate
from mtf.config import checks, lookup, tree
from mtf.config.overrides import try_overrides
from mtf.config.paths import nearest_paths

_GIN = (
    " mtf.run does not read gin; python -m mtf gin FILE.gin --output my_recipe.py translates gin "
    "files and gin flags to a recipe."
)
_VALUE = "VALUE"  # Stands for the value of a flag that has none.


def refusals(
    flags: Sequence[Flag],
    parser: argparse.ArgumentParser,
    config: fdl.Config | None = None,
    recipe: str = "",
    failure: str | None = None,
) -> list[str]:
    """Returns messages that say what to write instead of unknown flags.

    The config accepts the proposed settings if they are applied in this order.

    Args:
      flags: the unknown flags.
      parser: the parser of the command.
      config: the config of the recipe; None if the recipe cannot be called.
      recipe: the text of the recipe, to which arguments may be added; "" if none was given.
      failure: why the recipe cannot be called. The last message is this text, unless the recipe can
        be called with the arguments that another message proposes.
    """
    if not flags:
        return [] if failure is None else [failure]
    given = {_plain(flag.name): flag.value for flag in flags}
    messages, names, note, left = list[str](), list[str](), "", list[Flag]()
    call = recipe
    for flag in flags:
        about, proposals = translate(_plain(flag.name), flag.value or _VALUE, given, config)
        # If there is a config, settings that precede an argument are proposed.
        first = proposals if config is None else proposals[:1]
        argument = next((text[1:-1] for text in first if text.startswith("(")), "")
        name, _, value = argument.partition("=")
        try:
            changed = lookup.with_argument(call, name, _literal(value)) if name else None
        except UserError as error:
            messages.append(f"There is no option {flag.name}.{about} {error}")
            continue
        if changed is None:
            left.append(flag)
        else:
            call, note = changed, about
            names.append(flag.name)
    if names:
        missing = f"is no option {names[0]}.{note}"
        if len(names) > 1:
            missing = f"are no options {', '.join(names)}."
        messages.append(f"There {missing} Write {quoted(call)}")
        if config is None:
            with contextlib.suppress(UserError):  # Perhaps the recipe can be called now.
                config, failure = lookup.resolve(call), None
    config = None if config is None else tree.complete(config)
    for flag in left:
        hint, config = _hint(flag, option_names(parser), config, given)
        messages.append(f"There is no option {flag.name}.{hint}")
    return messages if failure is None else [*messages, failure]


def _hint(
    flag: Flag, options: list[str], config: fdl.Config | None, given: Mapping[str, str | None]
) -> tuple[str, fdl.Config | None]:
    """Returns what to write instead of a flag, and the config with the proposed settings."""
    name, value, is_gin = *flag, flag.name.startswith("--gin")
    if name in ("--gin_param", "--gin_bindings"):
        name, _, value = map(str.strip, (value or "").partition("="))
    shown, wanted = value or _VALUE, _plain(name)
    if is_gin:  # Parameters and macros of T5X, such as TRAIN_STEPS, have mtf's names.
        wanted = name.rpartition(".")[2].lower()
    else:
        note, proposals = translate(wanted, shown, given, config)
        hint, changed = _proposal(proposals, config)
        if hint:
            return note + hint, changed
    known = [] if config is None else tree.known_paths(config)
    same = [path for path in known if f".{path}".endswith(f".{wanted}")]
    if wanted in same or len(same) == 1:
        return _proposal([f"{wanted if wanted in same else same[0]}={shown}"], config)
    if is_gin:
        return _GIN, config
    near = difflib.get_close_matches(name, options, cutoff=0.75)
    if same or not near:
        paths = same[:3] or nearest_paths(wanted, known)
        near = [f"--set {quoted(f'{path}={shown}')}" for path in paths]
    return suggestion(near) or " --help lists the options.", config


def _proposal(proposals: Sequence[str], config: fdl.Config | None) -> tuple[str, fdl.Config | None]:
    """Returns a hint with the first proposal (see `transformers_flags`) that fits, and the config.

    If values are refused, the hint is the reason; if no proposal fits, it is "".
    """
    reason = ""
    for text in proposals:
        if text.startswith("-"):
            return f"{text[1:]} Leave it out.", config
        if text.startswith("python "):
            return f" Write {text}", config
        settings = [] if config is None else _settings(text, config)
        if config is None or not settings:
            continue
        changed, problems = try_overrides(config, settings)
        before = checks.find_refusals(config)
        problems += [each for each in checks.find_refusals(changed) if each not in before]
        if not problems or _VALUE in text:
            return f" Write --set {' '.join(map(quoted, settings))}", changed
        reason = reason or f" {problems[0]}"
    return reason, config


def _settings(text: str, config: fdl.Config) -> list[str]:
    """Returns the settings of a proposal, or [] if the config lacks one of its paths."""
    known, settings = {*tree.known_paths(config)}, list[str]()
    for part in text.split("; "):
        path, is_setting, _ = part.partition("=")
        replaced = (each.partition("=")[0] + "." for each in settings)
        if path not in known and not path.startswith(tuple(replaced)):
            return []
        if is_setting:
            settings.append(part)
    return settings


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _literal(text: str) -> str:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return repr(text)
    return text
