"""Applies --set, --unset and --apply to a config, in the order of the command line.

Fiddle's `absl_flags` neither checks types nor suggests names.
"""

from __future__ import annotations

import dataclasses
import inspect
import shlex
import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import fiddle as fdl

from mtf.config import lookup, paths, provenance, tree, types
from mtf.config.checks import summarize
from mtf.config.paths import NOWHERE, Path, follow, format_path, parse_path
from mtf.errors import UserError, did_you_mean, suggestion

_REMOVE = object()


@dataclasses.dataclass(frozen=True)
class Override:
    """A change of the config; `text` is PATH=VALUE or +PATH=VALUE, PATH, or a fiddler's call."""

    kind: Literal["set", "unset", "apply"]
    text: str

    def __str__(self) -> str:
        return f"--{self.kind} {self.text}"


class _Swap(NamedTuple):
    """A component `old` that `--set PATH=@builder(…)` replaced; `call` is "@builder(…)"."""

    path: Path
    old: fdl.Buildable
    call: str


class Place(NamedTuple):
    """The end of a path: a field of a component, or an element inside the field's value.

    `steps` lead to the element through dicts, lists and tuples; `declared` is its type.
    """

    node: fdl.Buildable
    field: Any
    steps: Path
    declared: Any


def apply_overrides(config: fdl.Config, overrides: Sequence[Override | str]) -> fdl.Config:
    """Returns a copy of the config with the changes applied in order; a string is a `set`.

    A change inside a shared component applies wherever the component is used. All mistakes are
    raised in one UserError.
    """
    config, problems = try_overrides(config, overrides)
    if problems:
        raise UserError(summarize(problems))
    return config


def try_overrides(
    config: fdl.Config, overrides: Sequence[Override | str]
) -> tuple[fdl.Config, list[str]]:
    """Like `apply_overrides`, but applies what it can, and returns the config and the mistakes.

    Prints a warning on stderr if a replaced component had values that are lost.
    """
    config = tree.complete(config)
    problems: list[str] = []
    swaps: list[_Swap] = []
    for item in overrides:
        override = Override("set", item) if isinstance(item, str) else item
        try:
            if override.kind == "apply":
                config = lookup.apply_fiddler(override.text, config)
                continue
            with provenance.set_by(f"{override} (command line)"):
                if override.kind == "unset":
                    _unset(config, override.text)
                else:
                    swaps += _set(config, override.text)
            config = tree.complete(config)
        except UserError as error:
            problems.append(str(error))
    for swap in swaps:
        _warn_of_loss(swap, config)
    return config, problems


def _set(config: fdl.Config, text: str) -> list[_Swap]:
    """Applies a `set`; returns the swap if it replaces a component."""
    path_text, value_text = paths.split_assignment(text)
    path = parse_path(path_text.removeprefix("+"))
    place = find(config, path, text, add=path_text.startswith("+"))
    old = follow(config, path)
    is_swap = value_text.startswith("@")
    shown = f"{format_path(path)}={value_text}"
    try:
        value = lookup.parse_value(value_text, place.declared)
        if isinstance(old, fdl.Buildable) and not is_swap and value is not None:
            name = types.qualified_name(fdl.get_callable(old)).rpartition(".")[2]
            raise types.Mismatch(f"expected a component such as {name}.{types.SWAP_HINT}")
    except types.Mismatch as mismatch:
        reason = tree.refusal(place.node, place.field, value_text) or mismatch
        raise UserError(f"{shown}: {reason}") from None
    except UserError as error:
        raise UserError(f"{shown}: {error}") from None
    _store(config, place, value)
    return [_Swap(path, old, value_text)] if is_swap and isinstance(old, fdl.Buildable) else []


def _unset(config: fdl.Config, text: str) -> None:
    path = parse_path(text)
    place = find(config, path, f"--unset {text}")
    if place.steps:
        container = follow(tree.arguments(place.node)[place.field], place.steps[:-1])
        if not isinstance(container, dict):
            raise UserError(
                f"--unset {text}: cannot remove an element of a {type(container).__name__}. Set "
                f"the whole value: --set {format_path(path[:-1])}=…"
            )
        _store(config, place, _REMOVE)
    elif place.field in place.node.__arguments__:
        delattr(place.node, place.field)


def find(config: fdl.Config, path: Path, what: str, *, add: bool = False) -> Place:
    """Follows a path to its value; raises a UserError about `what` that suggests similar paths.

    `what` is PATH=VALUE or an option with its argument. `add` allows a new key at the end.
    """
    shown = what if what.startswith("--") else f"{format_path(path)}={what.partition('=')[2]}"

    def refuse(reason: str) -> UserError:
        near = paths.nearest_paths(format_path(path), tree.known_paths(config))
        return UserError(f"{shown}: {reason}.{suggestion(near)}")

    place = Place(config, None, (), None)
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
            place = Place(current, step, (), types.type_hints(target).get(str(step), Any))
            current = tree.arguments(current).get(step, fdl.NO_VALUE)
            continue
        container = current
        if isinstance(current, dict):
            # In a path, the key "1" looks like the index 1.
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
                last_one = f", the last is {here}[{len(current) - 1}]" if current else ""
                raise UserError(
                    f"{shown}: {here} has no element {step}; it has {len(current)} elements"
                    f"{last_one}."
                )
            current = current[step]
        elif current is fdl.NO_VALUE or current is None:
            state = "is None" if current is None else "is not set yet"
            component = any(map(types.is_component, types.members(place.declared)))
            example = f"{'@builder(…)' if component else '…'} ({types.describe(place.declared)})"
            raise UserError(f"{shown}: {here} {state}. Set it first: --set {here}={example}")
        else:
            raise refuse(f"{here} has the value {current!r}, which has no fields")
        declared = types.element_type(place.declared, container, step)
        place = place._replace(steps=(*place.steps, step), declared=declared)
    return place


def _store(config: fdl.Config, place: Place, value: Any) -> None:
    if not place.steps:
        setattr(place.node, place.field, value)
        return
    old = tree.arguments(place.node)[place.field]
    new = _rebuilt(old, place.steps, value)
    setattr(place.node, place.field, new)
    if isinstance(old, dict | list):
        # A dict or list that two components share is replaced in both.
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


def _warn_of_loss(swap: _Swap, config: fdl.Config) -> None:
    """Prints which values a swap has dropped, and how to keep them.

    They were set on the old component, and differ from its defaults and from the new values, which
    were not set. A value that the old builder chose counts if it is an argument of the new one.
    """
    name, arguments = lookup.split_call(swap.call[1:])
    given = set(lookup.keywords(arguments, name))
    accepted = set(inspect.signature(lookup.find(name, "builder")).parameters)
    lost = []
    for leaf in tree.leaves(swap.old):
        default = tree.parameters(leaf.node).get(leaf.field)
        new = follow(config, (*swap.path, *leaf.path))
        if not (
            leaf.is_component
            or default is None
            or default.default is default.empty
            or given & {leaf.field, *map(str, leaf.path[:1])}
            or provenance.of_leaf(leaf) == "default"
            or (not leaf.steps and leaf.value == default.default)
            or new is NOWHERE
            or isinstance(new, fdl.Buildable)
            or new == leaf.value
            or _set_later(swap, config, leaf)
            or (leaf.field not in accepted and provenance.is_of_builder(leaf.node, leaf.field))
        ):
            lost.append((format_path((*swap.path, *leaf.path)), leaf.value, new))
    if lost:
        dropped = ", ".join(f"{path}={value!r} (now {new!r})" for path, value, new in lost)
        keep = " ".join(
            shlex.quote(f"{path}={value if isinstance(value, str) else repr(value)}")
            for path, value, _ in lost
        )
        print(
            f"warning: {format_path(swap.path)}={swap.call} replaces the whole component and "
            f"drops {dropped}. To keep these values, add --set {keep}",
            file=sys.stderr,
        )


def _set_later(swap: _Swap, config: fdl.Config, leaf: tree.Leaf) -> bool:
    """Returns whether a later override has set the new component's field."""
    above = leaf.path[: len(leaf.path) - len(leaf.steps) - 1]
    holder = follow(config, (*swap.path, *above))
    where = provenance.of_field(holder, leaf.field)
    return where not in ("default", provenance.of_field(holder, "__fn_or_cls__"))
