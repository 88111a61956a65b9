"""Applies --set, --unset and --apply to a config in the order in which they are given.

Fiddle's `absl_flags` is not used because it neither checks types nor suggests names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import fiddle as fdl

from mtf.base.errors import UserError, did_you_mean, suggestion
from mtf.config import lookup, paths, provenance, tree, types
from mtf.config.checks import summarize
from mtf.config.paths import Leaf, Path, follow, format_path, parse_path

_REMOVE = object()


class Override(NamedTuple):
    """A change to a config.

    Attributes:
      kind: the name of the option, which is "set", "unset" or "apply".
      text: the argument of the option, which is PATH=VALUE or +PATH=VALUE for "set", PATH for
        "unset" and FIDDLER(…) for "apply".
    """

    kind: Literal["set", "unset", "apply"]
    text: str


def apply_overrides(config: fdl.Config, overrides: Sequence[Override | str]) -> fdl.Config:
    """Returns a copy of the config with the overrides applied in order.

    A string is treated as an override of kind "set". A change inside a shared component
    applies wherever the component is used. Raises a single UserError that lists all mistakes.
    """
    config, problems = try_overrides(config, overrides)
    if problems:
        raise UserError(summarize(problems))
    return config


def try_overrides(
    config: fdl.Config, overrides: Sequence[Override | str]
) -> tuple[fdl.Config, list[str]]:
    """Returns a copy of the config with valid overrides applied, and messages about the rest."""
    config = tree.complete(config)
    problems: list[str] = []
    for override in overrides:
        kind, text = ("set", override) if isinstance(override, str) else override
        try:
            if kind == "apply":
                config = lookup.apply_fiddler(text, config)
                continue
            with provenance.set_by(f"--{kind} {text} (command line)"):
                (_unset if kind == "unset" else _set)(config, text)
            config = tree.complete(config)
        except UserError as error:
            problems.append(str(error))
    return config, problems


def _set(config: fdl.Config, text: str) -> None:
    path_text, value_text = paths.split_assignment(text)
    path = parse_path(path_text.removeprefix("+"))
    old = find(config, path, text, add=path_text.startswith("+"))
    shown = f"{format_path(path)}={value_text}"
    try:
        value = lookup.parse_value(value_text, old.declared)
        if old.is_component and value_text[:1] != "@" and value is not None:
            name = types.qualified_name(old.value).rpartition(".")[2]
            raise types.Mismatch(f"expected a component such as {name}.{types.SWAP_HINT}")
    except types.Mismatch as mismatch:
        reason = tree.refusal(old.node, old.field, value_text) or str(mismatch)
        instead = tree.field_metadata(old.node, str(old.field)).get("instead_of_number")
        if instead and re.fullmatch(r"[\d.e+-]+", value_text) and not old.steps:
            write = f" Write {format_path(path)}={instead.format(value_text)}"
            reason = reason.replace(types.SWAP_HINT, write)
        raise UserError(f"{shown}: {reason}") from None
    except UserError as error:
        raise UserError(f"{shown}: {error}") from None
    _store(config, old, value)


def _unset(config: fdl.Config, text: str) -> None:
    path = parse_path(text)
    old = find(config, path, f"--unset {text}")
    if old.steps:
        container = follow(tree.arguments(old.node)[old.field], old.steps[:-1])
        if not isinstance(container, dict):
            raise UserError(
                f"--unset {text}: cannot remove an element of a {type(container).__name__}. Set "
                f"the whole value: --set {format_path(path[:-1])}=…"
            )
        _store(config, old, _REMOVE)
    elif old.field in old.node.__arguments__:
        delattr(old.node, old.field)


def find(config: fdl.Config, path: Path, what: str, *, add: bool = False) -> Leaf:
    """Returns what is at a path; raises a UserError with suggestions if the path does not exist.

    Args:
      config: the config to search.
      path: the path to look up.
      what: the text to show in error messages, either PATH=VALUE or an option with its argument.
      add: whether the last step of the path may be a new key.
    """
    shown = what if what.startswith("--") else f"{format_path(path)}={what.partition('=')[2]}"

    def refuse(reason: str) -> UserError:
        near = paths.nearest_paths(format_path(path), tree.known_paths(config))
        return UserError(f"{shown}: {reason}.{suggestion(near)}")

    node, field, declared = config, "", Any
    steps: Path = ()
    current: Any = config
    for depth, step in enumerate(path):
        last = depth == len(path) - 1
        here = format_path(path[:depth])
        if isinstance(current, fdl.Buildable):
            known = step in tree.parameters(current) or step in current.__arguments__
            target = fdl.get_callable(current)
            if not known and not (add and last and current.__signature_info__.has_var_keyword):
                owner = types.qualified_name(target).rpartition(".")[2]
                raise refuse(f"{owner} has no field {step}")
            node, field, steps = current, step, ()
            declared = types.type_hints(target).get(str(step), Any)
            current = tree.arguments(current).get(step, fdl.NO_VALUE)
            continue
        container = current
        if isinstance(current, dict):
            # The number 1 in a path may also mean the key "1".
            if step not in current and str(step) in current:
                step = str(step)
            if step not in current and not (add and last):
                keys = ", ".join(map(str, current)) or "none"
                extra = f" (to add this key: --set +{format_path(path)}=…)" if last else ""
                near = did_you_mean(str(step), map(str, current))
                raise UserError(f"{shown}: {here} has no key {step}; keys: {keys}{extra}.{near}")
            current = current.get(step, fdl.NO_VALUE)
        elif isinstance(current, list | tuple):
            if not isinstance(step, int) or not 0 <= step < len(current):
                last_one = f", and the last one is {here}[{len(current) - 1}]" if current else ""
                raise UserError(
                    f"{shown}: {here} has no element {step}; it has {len(current)} elements"
                    f"{last_one}."
                )
            current = current[step]
        elif current is fdl.NO_VALUE or current is None:
            state = "is None" if current is None else "is not set yet"
            component = any(map(types.is_component, types.members(declared)))
            example = f"{'@builder(…)' if component else '…'} ({types.describe(declared)})"
            raise UserError(f"{shown}: {here} {state}. Set it first: --set {here}={example}")
        else:
            raise refuse(f"{here} has the value {current!r}, which has no fields")
        declared = types.element_type(declared, container, step)
        steps = (*steps, step)
    is_component = isinstance(current, fdl.Buildable)
    value = fdl.get_callable(current) if is_component else current
    return Leaf(path, value, is_component, declared, node, field, steps)


def _store(config: fdl.Config, leaf: Leaf, value: Any) -> None:
    if not leaf.steps:
        setattr(leaf.node, leaf.field, value)
        return
    old = tree.arguments(leaf.node)[leaf.field]
    new = _rebuilt(old, leaf.steps, value)
    setattr(leaf.node, leaf.field, new)
    if isinstance(old, dict | list):
        # If several components share the dict or list, replace it in all of them.
        for _, node in list(tree.components(config)):
            for field in [name for name, held in node.__arguments__.items() if held is old]:
                setattr(node, field, new)


def _rebuilt(container: Any, steps: Path, value: Any) -> Any:
    """Returns a copy of nested dicts, lists and tuples with one element set or removed."""
    step, rest = steps[0], steps[1:]
    if value is _REMOVE and not rest:
        return {key: item for key, item in container.items() if key != step}
    inner = _rebuilt(container[step], rest, value) if rest else value
    if isinstance(container, dict):
        return {**container, step: inner}
    return type(container)([*container[:step], inner, *container[step + 1 :]])
