"""Walking a config: its components, its values, what each is declared to be, where it was set."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
from fiddle import history

from mtf.config import types
from mtf.config.paths import Path


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A value in a config.

    Attributes:
      path: where it is.
      value: a plain value; for a component its class or function.
      is_component: whether it is a component rather than a value.
      is_default: not set by anyone.
      node: the component that holds it (of the root: itself).
      field: the field of `node` at or above the value; "" for the root.
      field_depth: how many steps of the path lead up to that field and include it.
      declared: its type.
    """

    path: Path
    value: Any
    is_component: bool
    is_default: bool
    node: fdl.Buildable
    field: str
    field_depth: int
    declared: Any


def parameters(node: fdl.Buildable) -> dict[str, inspect.Parameter]:
    """Returns the parameters that can be set by name, in order; `**kwargs` not among them."""
    return {
        name: parameter
        for name, parameter in node.__signature_info__.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def takes_any_name(node: fdl.Buildable) -> bool:
    """Returns whether the component takes `**kwargs`."""
    return bool(node.__signature_info__.has_var_keyword)


def arguments(node: fdl.Buildable) -> dict[Any, Any]:
    """Returns what is set on a component or has a default, in the order of its fields."""
    return fdl.ordered_arguments(node, include_defaults=True)


def declared_type(node: fdl.Buildable, field: str) -> Any:
    """Returns the annotation of a component's field; Any where it has none."""
    return types.type_hints(fdl.get_callable(node)).get(field, Any)


def field_metadata(node: fdl.Buildable, field: str) -> dict[str, Any]:
    """Returns the metadata of a dataclass's field, empty where there is none."""
    target = fdl.get_callable(node)
    if not dataclasses.is_dataclass(target):
        return {}
    return next((dict(f.metadata) for f in dataclasses.fields(target) if f.name == field), {})


def _has_component(value: Any) -> bool:
    if isinstance(value, fdl.Buildable):
        return True
    if isinstance(value, dict):
        return any(map(_has_component, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_component, value))


def leaves(config: fdl.Buildable) -> Iterator[Leaf]:
    """Yields every component and value, parents first, in the order of the fields.

    Dicts are opened; lists and tuples only where they hold components. A shared component is
    yielded under each of its paths.
    """
    target = fdl.get_callable(config)
    yield Leaf((), target, True, False, config, "", 0, Any)
    yield from _leaves_below(config, ())


def _leaves_below(node: fdl.Buildable, path: Path) -> Iterator[Leaf]:
    hints = types.type_hints(fdl.get_callable(node))
    for field, value in arguments(node).items():
        top = Leaf(
            path=(*path, field),
            value=value,
            is_component=False,
            is_default=field not in node.__arguments__,
            node=node,
            field=str(field),
            field_depth=len(path) + 1,
            declared=hints.get(field, Any),
        )
        yield from _opened(top)


def _opened(leaf: Leaf) -> Iterator[Leaf]:
    value = leaf.value
    if isinstance(value, fdl.Buildable):
        yield dataclasses.replace(leaf, value=fdl.get_callable(value), is_component=True)
        yield from _leaves_below(value, leaf.path)
        return
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list | tuple) and _has_component(value):
        items = list(enumerate(value))
    for step, item in items:
        declared = types.element_type(leaf.declared, value, step)
        inner = dataclasses.replace(leaf, path=(*leaf.path, step), value=item, declared=declared)
        yield from _opened(inner)
    if not items:
        yield leaf


def components(config: Any, path: Path = ()) -> Iterator[tuple[Path, fdl.Buildable]]:
    """Yields every component once, with the first path that leads to it, children first."""
    yield from _components(config, path, set())


def _components(value: Any, path: Path, seen: set[int]) -> Iterator[tuple[Path, fdl.Buildable]]:
    if isinstance(value, fdl.Buildable):
        if id(value) in seen:
            return
        seen.add(id(value))
        for field, item in value.__arguments__.items():
            yield from _components(item, (*path, field), seen)
        yield path, value
    elif isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for step, item in items:
            yield from _components(item, (*path, step), seen)


def complete(config: fdl.Buildable) -> fdl.Buildable:
    """Returns a copy in which components that are only defaults can be set like any other.

    Default factories are called, dataclass instances (defaults or set ones) become components,
    and values take the form of their declared type (an int of a float field, a list of a tuple's)
    where it allows them. What is shared stays shared.
    """
    config = copy.deepcopy(config)
    _complete(config)
    return config


_DEFAULT = history.Location("default", 0, None)


def _complete(config: Any) -> None:
    for _, node in list(components(config)):
        target = fdl.get_callable(node)
        hints = types.type_hints(target)
        factories = (
            {
                field.name: field.default_factory
                for field in dataclasses.fields(target)
                if field.default_factory is not dataclasses.MISSING
            }
            if dataclasses.is_dataclass(target)
            else {}
        )
        for field, parameter in parameters(node).items():
            if field in node.__arguments__:
                value = _as_components(node.__arguments__[field])
                try:
                    value = types.convert(value, hints.get(field, Any))
                except types.Mismatch:  # `check` reports it.
                    continue
                node.__arguments__[field] = value
                continue
            if field in factories:
                default = factories[field]()
            elif _has_instance(parameter.default):
                default = parameter.default
            else:
                continue
            with history.custom_location(lambda: _DEFAULT):
                value = _as_components(default)
                _complete(value)
                setattr(node, field, value)


def _is_instance(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type | fdl.Buildable)


def _has_instance(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_instance, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_instance, value))
    return _is_instance(value)


def _as_components(value: Any) -> Any:
    """Returns `value` with dataclass instances, however deep, as fdl.Configs of their fields."""
    if not _has_instance(value):
        return value
    if isinstance(value, dict):
        return {key: _as_components(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_as_components(item) for item in value)
    fields = (field.name for field in dataclasses.fields(value) if field.init)
    return fdl.Config(
        type(value), **{field: _as_components(getattr(value, field)) for field in fields}
    )


def from_instance(instance: Any) -> fdl.Config:
    """Returns the config of a dataclass instance; its values come from "the arguments of NAME".

    Values that are no dataclasses stay as they are.
    """
    with history.suspend_tracking():
        config = _as_components(instance)
    for _, node in list(components(config)):
        name = getattr(fdl.get_callable(node), "__name__", "?")
        location = history.Location(f"the arguments of {name}", 0, None)
        with history.custom_location(lambda location=location: location):
            for field, value in list(node.__arguments__.items()):
                node.__argument_history__.add_new_value(field, value)
    return config


def freeze_defaults(config: fdl.Buildable) -> fdl.Buildable:
    """Returns a copy with every default written out, so that it outlives a change of the code."""
    config = complete(config)
    with history.suspend_tracking():
        for _, node in list(components(config)):
            for field, parameter in parameters(node).items():
                if field not in node.__arguments__ and parameter.default is not parameter.empty:
                    setattr(node, field, parameter.default)
    return config


def known_paths(config: fdl.Buildable) -> list[tuple[Any, ...]]:
    """Returns every path that can be set: components, values, and fields that have none yet."""
    found: dict[Path, None] = {leaf.path: None for leaf in leaves(config) if leaf.path}
    for path in list(found):
        for length in range(1, len(path)):
            found.setdefault(path[:length], None)
    for path, node in components(config):
        for field in parameters(node):
            found.setdefault((*path, field), None)
    return list(found)
