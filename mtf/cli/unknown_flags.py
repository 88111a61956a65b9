"""Suggests replacements for flags that `mtf.run` does not have."""

from __future__ import annotations

import argparse
import ast
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
    options: argparse.Namespace,
    parser: argparse.ArgumentParser,
    config: fdl.Config | None = None,
    failure: str | None = None,
) -> list[str]:
    """Returns messages that say what to write instead of unknown flags.

    If several flags are translated, the last message ends with the whole command.

    Args:
      options: the parsed command line.
      parser: the parser of the command.
      config: the config of the recipe, with overrides; None if the recipe cannot be called.
      failure: why the recipe cannot be called. The first message is this text, or the reason that
        remains with the proposed arguments.
    """
    if not options.unknown:
        return [] if failure is None else [failure]
    given = {_plain(flag.name): flag.value for flag in options.unknown}
    if not (names := options.recipe) and options.from_dir is None:
        names = ["recipes.finetune" if "model_name_or_path" in given else "RECIPE"]
    recipe = next(iter(names), "")
    was_valid = is_known = config is not None
    config = config or _similar(recipe)
    call, settings, left = recipe, list[str](), list[Flag]()
    messages, notes = list[str](), dict[str, str]()  # Notes on the flags that are translated.
    for flag in options.unknown:
        note, proposals = translate(_plain(flag.name), flag.value or _VALUE, given, config, recipe)
        text, changed = next(iter(proposals), ""), None
        try:
            for argument in text[1:-1].split(") (") if text.startswith("(") else ():
                name, _, value = argument.partition("=")
                changed = lookup.with_argument(changed or call, name, _literal(value))
        except UserError as error:
            messages.append(f"There is no option {flag.name}.{note} {error}")
            continue
        if changed is None:
            left.append(flag)
        else:
            call, notes[flag.name] = changed, note
    if notes:
        fiddlers = [text for kind, text in options.overrides if kind == "apply"]
        try:
            called, _ = try_overrides(lookup.resolve(call, fiddlers), options.overrides)
            failure = next(iter(_new_refusals(called, config if was_valid else None)), None)
            config, is_known = (config if was_valid and failure else called), True
        except UserError as error:
            failure = str(error) if options.recipe else failure
        if was_valid and failure:
            messages.append(f"There is no option {', '.join(notes)}. {failure}")
            call, failure = recipe, None
            notes.clear()
    if not is_known:  # The number of steps in an epoch is not known, either.
        given = {name: value for name, value in given.items() if "epochs" not in name}
    for flag in left:
        hint, written, config = _hint(flag, option_names(parser), config, given, recipe, is_known)
        if written:
            notes[flag.name] = hint
            settings += written
        else:
            messages.append(f"There is no option {flag.name}.{hint}")
    messages = messages if failure is None else [failure, *messages]
    changes = ["--set", *map(quoted, settings)] if settings else []
    if len(notes) == 1 and names == options.recipe:
        ((name, note),) = notes.items()
        write = " ".join(changes) or quoted(call)
        messages.append(f"There is no option {name}.{note} Write {write}")
    elif notes:
        about = "".join(f"\n{name}:{note}" for name, note in notes.items() if note)
        known = options.known if names == options.recipe else [recipe, *options.known]
        words = [quoted(call if word == recipe else word) for word in known]
        command = " ".join(["python -m mtf.run", *words, *changes])
        start = "There is no option" if len(notes) == 1 else "There are no options"
        messages.append(f"{start} {', '.join(notes)}.{about}\nWrite: {command}")
    return messages


def argument_hint(problem: str, recipe: str) -> str:
    """Returns a hint if a refused `NAME=VALUE` names an argument of the recipe, otherwise ""."""
    name, _, rest = problem.partition("=")
    value, _, reason = rest.partition(": ")
    if f"has no field {name}." not in reason:
        return ""
    call = lookup.with_argument(recipe, name, _literal(value))
    if call is None:
        return ""
    return f" {name} is an argument of the recipe: python -m mtf.run {quoted(call)}"


def _similar(recipe: str) -> fdl.Config:
    """Returns the config of a recipe with data that come with mtf, or else of `finetune`."""
    try:
        return lookup.resolve(lookup.split_call(recipe)[0], ["smoke_test"])
    except UserError:
        return lookup.resolve("recipes.finetune", ["smoke_test"])


def _new_refusals(config: fdl.Config, old: fdl.Config | None) -> list[str]:
    before = [] if old is None else checks.find_refusals(old)
    return [each for each in checks.find_refusals(config) if each not in before]


def _hint(
    flag: Flag,
    options: list[str],
    config: fdl.Config,
    given: Mapping[str, str | None],
    recipe: str,
    is_known: bool,
) -> tuple[str, list[str], fdl.Config]:
    """Returns a hint on a flag, the settings that replace it, and the config with them."""
    name, value, is_gin = *flag, flag.name.startswith("--gin")
    if name in ("--gin_param", "--gin_bindings"):
        name, _, value = map(str.strip, (value or "").partition("="))
    shown, wanted = value or _VALUE, _plain(name)
    if is_gin:  # Parameters and macros of T5X, such as TRAIN_STEPS, have mtf's names.
        wanted = name.rpartition(".")[2].lower()
    else:
        note, proposals = translate(wanted, shown, given, config, recipe)
        hint, settings, changed = _proposal(proposals, config, is_known)
        if hint or settings:
            return note + hint, settings, changed
    known = tree.known_paths(config)
    same = [path for path in known if f".{path}".endswith(f".{wanted}")]
    if wanted in same or len(same) == 1:
        return _proposal([f"{wanted if wanted in same else same[0]}={shown}"], config, is_known)
    if is_gin:
        return _GIN, [], config
    near = difflib.get_close_matches(name, options, cutoff=0.75)
    if same or not near:
        paths = same[:3] or nearest_paths(wanted, known)
        near = [f"--set {quoted(f'{path}={shown}')}" for path in paths]
    return suggestion(near) or " --help lists the options.", [], config


def _proposal(
    proposals: Sequence[str], config: fdl.Config, is_known: bool
) -> tuple[str, list[str], fdl.Config]:
    """Returns a hint, or the settings of the first proposal (see `transformers_flags`) that fits.

    If values are refused, the hint is the reason; if no proposal fits, it is "". Only values for a
    known config, that of the user's recipe, are checked together. The config has the settings.
    """
    reason = ""
    for text in proposals:
        if text.startswith("-"):
            return f"{text[1:]} Leave it out.", [], config
        if text.startswith("python "):
            return f" Write {text}", [], config
        if not (settings := _settings(text, config)):
            continue
        changed, problems = try_overrides(config, settings)
        problems += _new_refusals(changed, config) if is_known else []
        if not problems or _VALUE in text:
            return "", settings, changed
        reason = reason or f" {problems[0]}"
    return reason, [], config


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
