"""What the command line changes in a config: --set, --unset, --apply, in its order."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, Literal

import fiddle as fdl
from fiddle import history

from mtf.config import calls, lookup, paths, swaps, tree, types, values
from mtf.config.paths import Path, format_path, parse_path
from mtf.config.types import Mismatch
from mtf.errors import UserError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Override:
    """One change: `set` PATH=VALUE or +PATH=VALUE, `unset` PATH, `apply` a fiddler's name."""

    kind: Literal["set", "unset", "apply"]
    text: str

    def __str__(self) -> str:
        return f"--{self.kind} {self.text}"


def apply_overrides(config: fdl.Config, overrides: Sequence[Override | str]) -> fdl.Config:
    """Returns a copy of the config with the changes made, in their order.

    A path that leads into a shared component changes it wherever it is used.

    Args:
      config: stays as it is.
      overrides: a plain string is a `set`.

    Raises:
      UserError: all mistakes in one message.
    """
    config, problems = try_overrides(config, overrides)
    if problems:
        raise UserError(summarize(problems))
    return config


def try_overrides(
    config: fdl.Config, overrides: Sequence[Override | str]
) -> tuple[fdl.Config, list[str]]:
    """As `apply_overrides`, but returns the mistakes beside the config with the rest applied.

    Values that are lost because their component is swapped are told on stderr.
    """
    config = tree.complete(config)
    problems: list[str] = []
    replaced: list[swaps.Swap] = []
    for item in overrides:
        override = Override("set", item) if isinstance(item, str) else item
        try:
            swap = swaps.find(config, override.text) if override.kind == "set" else None
            config = _apply(config, override)
        except UserError as error:
            problems.append(str(error))
            continue
        replaced += [swap] if swap is not None else []
    for swap in replaced:
        warning = swaps.warning(swap, config)
        if warning is not None:
            print(f"warning: {warning}", file=sys.stderr)
    return config, problems


def summarize(problems: Sequence[str]) -> str:
    """Joins several mistakes into one message; one alone stays as it is."""
    if len(problems) == 1:
        return problems[0]
    lines = (problem.replace("\n", "\n    ") for problem in problems)
    return f"{len(problems)} mistakes:\n" + "\n".join(f"  {line}" for line in lines)


def _apply(config: fdl.Config, override: Override) -> fdl.Config:
    if override.kind == "apply":
        return _apply_fiddler(config, override)
    location = history.Location(f"{override} (command line)", 0, None)
    with history.custom_location(lambda: location):
        if override.kind == "unset":
            _unset(config, override.text)
        else:
            _set(config, override.text)
    return tree.complete(config)


def _apply_fiddler(config: fdl.Config, override: Override) -> fdl.Config:
    name, arguments = values.split_call(override.text)
    options = [name] if "." in name else [f"{lookup.RECIPES}.fiddlers.{name}"]
    if ":" in name:
        function, _ = lookup.find_recipe(name)
    else:
        function = lookup.find(options[0], "fiddler")
    if not callable(function):
        raise UserError(f"{name} is a {type(function).__name__}, not a fiddler (a function).")
    parsed = calls.parse_arguments(function, arguments, name, skip=1)  # The first is the config.
    changed = lookup.call_user_code(function, parsed, name, config)
    if changed is not None and not isinstance(changed, fdl.Config):
        raise UserError(
            f"{name} returns a {type(changed).__name__}. A fiddler changes the config that it "
            "is given and returns nothing, or returns a new fdl.Config."
        )
    return tree.complete(config if changed is None else changed)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a path leads.

    Attributes:
      node: the innermost component on the way.
      field: its field.
      steps: what follows inside the field's dicts, lists and tuples.
      declared: the type at the end.
    """

    node: fdl.Buildable
    field: Any
    steps: tuple[Any, ...]
    declared: Any


def _set(config: fdl.Config, text: str) -> None:
    path_text, value_text = paths.split_assignment(text)
    add = path_text.startswith("+")
    path = parse_path(path_text.removeprefix("+"))
    place = _find(config, path, text, add=add)
    shown = f"{format_path(path)}={value_text}"
    try:
        if value_text.startswith("@"):
            value = types.convert(calls.make_component(value_text[1:]), place.declared)
        else:
            value = values.parse(value_text, place.declared)
            _keep_component(config, path, value)
    except Mismatch as mismatch:
        reason = tree.field_metadata(place.node, str(place.field)).get("refused", {})
        raise UserError(f"{shown}: {reason.get(value_text, mismatch)}") from None
    except UserError as error:
        raise UserError(f"{shown}: {error}") from None
    _store(config, place, value)


def _keep_component(config: fdl.Config, path: Path, value: Any) -> None:
    """Refuses a literal in the place of a component; None has passed the type check."""
    try:
        current = _follow(config, path)
    except (KeyError, IndexError, AttributeError, ValueError):
        return
    if isinstance(current, fdl.Buildable) and value is not None:
        name = types.qualified_name(fdl.get_callable(current)).rpartition(".")[2]
        raise Mismatch(
            f"expected a component, as the {name} here. Set its fields one by one, or swap the "
            "whole with @builder(…)."
        )


def _follow(config: Any, path: Path) -> Any:
    for step in path:
        config = getattr(config, step) if isinstance(config, fdl.Buildable) else config[step]
    return config


def _unset(config: fdl.Config, text: str) -> None:
    path = parse_path(text)
    place = _find(config, path, f"--unset {text}", add=False)
    if place.steps:
        container = _follow(tree.arguments(place.node)[place.field], place.steps[:-1])
        if not isinstance(container, dict):
            raise UserError(
                f"--unset {text}: only a field or a dict's key can be taken away, not an element "
                f"of a {type(container).__name__}. Set the whole: {format_path(path[:-1])}=…"
            )
        _store(config, place, _REMOVE)
    elif place.field in place.node.__arguments__:
        delattr(place.node, place.field)


_REMOVE = object()


def _find(config: fdl.Config, path: Path, what: str, *, add: bool) -> _Place:
    """Follows a path to a place that can be set.

    Raises:
      UserError: it leads nowhere; says the nearest paths of the whole tree.
    """
    shown = what if what.startswith("--") else f"{format_path(path)}={what.partition('=')[2]}"

    def refuse(reason: str) -> UserError:
        known = [format_path(known) for known in tree.known_paths(config)]
        near = paths.nearest_paths(format_path(path), known)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        return UserError(f"{shown}: {reason}.{hint}")

    node: fdl.Buildable = config
    field: Any = None
    steps: tuple[Any, ...] = ()
    current: Any = config
    declared: Any = None
    for depth, step in enumerate(path):
        last = depth == len(path) - 1
        here = format_path(path[:depth])
        if isinstance(current, fdl.Buildable):
            node, field, steps = current, step, ()
            known = step in tree.parameters(node) or step in node.__arguments__
            if not known and not (add and last and tree.takes_any_name(node)):
                owner = types.qualified_name(fdl.get_callable(node)).rpartition(".")[2]
                raise refuse(f"{owner} has no field {step}")
            declared = tree.declared_type(node, str(field))
            current = tree.arguments(node).get(field, fdl.NO_VALUE)
            continue
        steps, container = (*steps, step), current
        if isinstance(current, dict):
            # A path is text: the key 1 of a dict may be written as a name, and the other way.
            if step not in current and str(step) in current:
                step = str(step)
                steps = (*steps[:-1], step)
            if step not in current and not (add and last):
                keys = ", ".join(map(str, current)) or "none"
                extra = f" (+{format_path(path)}=… adds one)" if last else ""
                near = did_you_mean(str(step), map(str, current))
                raise UserError(f"{shown}: {here} has no key {step}; keys: {keys}{extra}.{near}")
            current = current.get(step, fdl.NO_VALUE)
        elif isinstance(current, list | tuple):
            if not isinstance(step, int) or not 0 <= step < len(current):
                raise UserError(
                    f"{shown}: {here} has {len(current)} elements, numbered from 0; "
                    f"{step} is not among them."
                )
            current = current[step]
        elif current is fdl.NO_VALUE or current is None:
            state = "is None" if current is None else "is not set yet"
            component = any(map(types.is_component, types.members(declared)))
            example = "@builder(…)" if component else f"… ({types.describe(declared)})"
            raise UserError(f"{shown}: {here} {state}. Set it first: --set {here}={example}")
        else:
            raise refuse(f"{here} is the value {current!r}, which has no fields")
        declared = types.element_type(declared, container, step)
    return _Place(node, field, steps, declared)


def _store(config: fdl.Config, place: _Place, value: Any) -> None:
    if not place.steps:
        setattr(place.node, place.field, value)
        return
    old = tree.arguments(place.node)[place.field]
    new = _rebuilt(old, place.steps, value)
    holders = [(place.node, place.field)]
    if isinstance(old, dict | list):
        # One dict used by two components is one value: both get the new one.
        holders += [
            (node, field)
            for _, node in tree.components(config)
            for field, held in node.__arguments__.items()
            if held is old and not (node is place.node and field == place.field)
        ]
    for node, field in holders:
        setattr(node, field, new)


def _rebuilt(container: Any, steps: tuple[Any, ...], value: Any) -> Any:
    """Returns a copy of nested dicts, lists and tuples with one element changed."""
    step, rest = steps[0], steps[1:]
    inner = _rebuilt(container[step], rest, value) if rest else value
    if isinstance(container, dict):
        changed = {**container, step: inner}
        if inner is _REMOVE:
            del changed[step]
        return changed
    items = list(container)
    items[step] = inner
    return type(container)(items)
