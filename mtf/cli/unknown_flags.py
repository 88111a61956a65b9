"""Suggests replacements for flags that `mtf.run` does not have."""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
from collections.abc import Sequence

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
_CALL = "\0"  # Stands for the recipe until all of its arguments are known.
_VALUE = "VALUE"  # Stands for the value of a flag that has none.


def refusals(
    flags: Sequence[Flag],
    parser: argparse.ArgumentParser,
    config: fdl.Config | None = None,
    recipe: str | None = None,
    failure: str | None = None,
) -> list[str]:
    """Returns messages that say what to write instead of unknown flags.

    The config accepts the proposed settings if they are applied in this order.

    Args:
      flags: the unknown flags.
      parser: the parser of the command.
      config: the config of the recipe; None if the recipe cannot be called.
      recipe: the text of the recipe, to which arguments may be added.
      failure: why the recipe cannot be called. The last message is this text, unless the recipe can
        be called with the arguments that another message proposes.
    """
    if not flags:
        return [] if failure is None else [failure]
    hints = _Hints(flags, parser, config, recipe)
    found = [hints.find(flag) for flag in flags]
    call = hints.call()
    if config is None and call:
        with contextlib.suppress(UserError):  # Perhaps the recipe can be called now.
            hints = _Hints(flags, parser, lookup.resolve(call), call)
            for index, flag in enumerate(flags):
                if _CALL not in found[index]:
                    found[index] = hints.find(flag)
            failure = None
    hinted = list(zip((flag.name for flag in flags), found, strict=True))
    together = [name for name, text in hinted if _CALL in text]
    messages = []
    if len(together) > 1:
        messages.append(f"There are no options {', '.join(together)}. Write {quoted(call)}")
        hinted = [(name, text) for name, text in hinted if name not in together]
    for name, text in hinted:
        messages.append(f"There is no option {name}.{text.replace(_CALL, quoted(call))}")
    return messages if failure is None else [*messages, failure]


class _Hints:
    def __init__(
        self,
        flags: Sequence[Flag],
        parser: argparse.ArgumentParser,
        config: fdl.Config | None,
        recipe: str | None,
    ):
        self._given = {_plain(flag.name): flag.value for flag in flags}
        self._options = option_names(parser)
        self._config = None if config is None else tree.complete(config)
        self._recipe, self._arguments = recipe, dict[str, str]()

    def find(self, flag: Flag) -> str:
        """Returns what to write instead of a flag."""
        name, value, is_gin = *flag, flag.name.startswith("--gin")
        if name in ("--gin_param", "--gin_bindings"):
            name, _, value = map(str.strip, (value or "").partition("="))
        shown, wanted = value or _VALUE, _plain(name)
        if is_gin:  # Parameters and macros of T5X, such as TRAIN_STEPS, have mtf's names.
            wanted = name.rpartition(".")[2].lower()
        elif (translation := translate(wanted, shown, self._given, self._config)) and (
            hint := self._proposal(translation.alternatives)
        ):
            return translation.note + hint
        known = self._paths()
        same = [path for path in known if f".{path}".endswith(f".{wanted}")]
        if wanted in same or len(same) == 1:
            path = wanted if wanted in same else same[0]
            return self._proposal([f"{path}={shown}"]) or ""
        if is_gin:
            return _GIN
        near = difflib.get_close_matches(name, self._options, cutoff=0.75)
        if same or not near:
            paths = same[:3] or nearest_paths(wanted, known)
            near = [f"--set {quoted(f'{path}={shown}')}" for path in paths]
        return suggestion(near) or " --help lists the options."

    def call(self) -> str:
        """Returns the recipe with all proposed arguments, or "" if there are none."""
        if self._recipe is None or not self._arguments:
            return ""
        return lookup.with_arguments(self._recipe, self._arguments)

    def _paths(self) -> list[str]:
        return [] if self._config is None else tree.known_paths(self._config)

    def _proposal(self, alternatives: Sequence[str]) -> str:
        """Returns a hint with the first alternative (see `transformers_flags`) that fits.

        If values are refused, returns the reason; if no alternative fits, returns "".
        """
        reason = ""
        for text in alternatives:
            if text.startswith("-"):
                return f"{text[1:]} Leave it out."
            if text.startswith("python "):
                return f" Write {text}"
            if text.startswith("("):
                name, _, value = text[1:-1].partition("=")
                if reason or self._recipe is None or name not in lookup.arguments_of(self._recipe):
                    continue
                try:
                    lookup.check_argument(self._recipe, name, _literal(value))
                except UserError as error:
                    return f" {error}"
                self._arguments[name] = _literal(value)
                return f" Write {_CALL}"
            settings = self._settings(text)
            if self._config is None or settings is None:
                continue
            changed, problems = try_overrides(self._config, settings)
            before = checks.find_refusals(self._config)
            problems += [each for each in checks.find_refusals(changed) if each not in before]
            if not problems or _VALUE in text:
                self._config = changed
                return f" Write --set {' '.join(map(quoted, settings))}"
            reason = reason or f" {problems[0]}"
        return reason

    def _settings(self, text: str) -> list[str] | None:
        """Returns the settings of an alternative, or None if the config lacks one of its paths."""
        known, settings = {*self._paths()}, list[str]()
        for part in text.split("; "):
            path, is_setting, _ = part.partition("=")
            replaced = (each.partition("=")[0] + "." for each in settings)
            if path not in known and not path.startswith(tuple(replaced)):
                return None
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
