"""Lowers a job's config to a config of T5X's functions, by the table in `mtf.t5x.symbols`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import fiddle as fdl

from mtf.config import find_problems, summarize, tree
from mtf.config.paths import format_path
from mtf.errors import UserError
from mtf.t5x import adapters, opening, symbols, unsupported
from mtf.t5x.symbols import Adapted, ByType, ByValue, Fixed, Given, Symbol, Value
from mtf.t5x.unsupported import get, type_name


def lower(config: Any) -> fdl.Config:
    """Returns T5X's config of a job: `t5x.train.train`, `t5x.eval.evaluate` or `t5x.infer.infer`.

    `fdl.build(fdl.cast(fdl.Partial, lowered))()` runs it; building the config itself runs it, too.

    Args:
      config: the config of a job, or a job.

    Raises UserError if T5X is not installed, or with a list of everything that T5X cannot express.
    """
    if dataclasses.is_dataclass(config):
        config = tree.from_instance(config)
    if problems := find_problems(config):
        raise UserError(summarize(problems))
    check(config)
    from mtf.t5x import compatibility  # noqa: F401  # before T5X is imported

    table = symbols.JOBS[type_name(config)]
    if type_name(config) != "Train":
        config = opening.open_job(config)
    return _Lowering(tree.freeze_defaults(config)).value(table)


def check(config: fdl.Config) -> None:
    """Raises UserError with all settings that T5X cannot express; imports no T5X."""
    job = type_name(config)
    if job not in symbols.JOBS:
        raise UserError(f"--engine t5x runs {', '.join(symbols.JOBS)}, not {job}.")
    config = tree.freeze_defaults(config)
    if own := list(unsupported.find_open_parts(config)):
        raise UserError(f"T5X cannot run this recipe as it is:{_as_lines(own)}")
    problems = list(unsupported.find_refusals(config))
    used = {tuple(path.split(".")) for path in _paths(config, symbols.JOBS[job])}
    if job == "Infer":  # Its own settings are those of `data`.
        used |= {path[1:] for path in used if path[0] == "data"}
    used |= {tuple(path.split(".")) for path in unsupported.UNUSED[job]}
    used |= {tuple(refusal.path.split(".")) for refusal in unsupported.REFUSALS[job]}
    for leaf in tree.leaves(config):
        prefixes = (leaf.path[:length] for length in range(len(leaf.path) + 1))
        if not leaf.is_component and not used & {*prefixes} and leaf.value is not None:
            problems.append(f"{format_path(leaf.path)} = {leaf.value!r}: T5X has no such setting.")
    if problems:
        raise UserError(f"T5X cannot run this recipe as it is:{_as_lines(problems)}")


def _as_lines(problems: Sequence[str]) -> str:
    return "".join(f"\n  {problem}" for problem in problems)


def _paths(config: fdl.Config, value: Value) -> Iterator[str]:
    """Yields the paths of all values that the table reads for this config."""
    match value:
        case str():
            yield value
        case Adapted(_, paths):
            yield from paths
        case Symbol(_, arguments):
            for argument in arguments.values():
                yield from _paths(config, argument)
        case Given(path, symbol):
            yield path
            if get(config, path) is not None:
                yield from _paths(config, symbol)
        case ByType(path, choices):
            yield from _paths(config, choices[type_name(get(config, path))])
        case ByValue(function, paths, choices):
            yield from paths
            yield from _paths(config, choices[function(*(get(config, path) for path in paths))])


class _Lowering:
    """Lowers parts of the table; a symbol that is used twice is lowered once and shared."""

    def __init__(self, config: fdl.Config):
        self._config = config
        self._made: dict[int, fdl.Buildable] = {}

    def value(self, value: Value) -> Any:
        """Returns the value of an argument."""
        match value:
            case str():
                return get(self._config, value)
            case Adapted(function, paths):
                return function(*(get(self._config, path) for path in paths))
            case Fixed(constant):
                return constant
            case Given(path, symbol):
                return None if get(self._config, path) is None else self.value(symbol)
            case ByType(path, choices):
                return self._symbol(choices[type_name(get(self._config, path))])
            case ByValue(function, paths, choices):
                return self._symbol(choices[function(*(get(self._config, path) for path in paths))])
            case Symbol():
                return self._symbol(value)

    def _symbol(self, symbol: Symbol) -> fdl.Buildable:
        key = id(symbol)  # All symbols live as long as the table.
        if key not in self._made:
            kind = fdl.Partial if symbol.partial else fdl.Config
            arguments = {name: self.value(value) for name, value in symbol.arguments.items()}
            function = adapters.symbol(symbol.name)
            self._made[key] = (
                kind(function, **arguments) if arguments or not symbol.partial else (function)
            )
        return self._made[key]
