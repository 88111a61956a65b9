"""Iterates over the components and values of a config, and makes its default values explicit."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
from fiddle import daglish, history

from mtf.config import provenance, types
from mtf.config.paths import Leaf, Path, format_path


def parameters(node: fdl.Buildable) -> dict[str, inspect.Parameter]:
    """Returns a component's parameters that can be set by name, in order, except `**kwargs`."""
    return {
        name: parameter
        for name, parameter in node.__signature_info__.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def arguments(node: fdl.Buildable) -> dict[Any, Any]:
    """Returns a dict mapping a component's fields, in order, to their values or defaults."""
    return fdl.ordered_arguments(node, include_defaults=True)


def _dataclass_field(node: fdl.Buildable, name: str) -> Any:
    return getattr(fdl.get_callable(node), "__dataclass_fields__", {}).get(name)


def field_metadata(node: fdl.Buildable, name: str) -> dict[str, Any]:
    """Returns the metadata of a dataclass field, or {} if there is no such field."""
    field = _dataclass_field(node, name)
    return {} if field is None else dict(field.metadata)


def refusal(node: fdl.Buildable, name: Any, value: Any) -> str | None:
    """Returns why a field refuses a value (metadata {"refused": {value: reason}}), else None."""
    reasons = field_metadata(node, str(name)).get("refused", {})
    return reasons.get(value) if isinstance(value, str) else None


def leaves(config: fdl.Buildable) -> Iterator[Leaf]:
    """Yields every component and value of a config in the order of the fields, parents first.

    A dict is split into its elements, but a list or tuple is split only if it contains a component.
    A shared component is yielded once for each of its paths.
    """
    yield Leaf((), fdl.get_callable(config), True, Any, config, "")
    yield from _leaves_below(config, ())


def _leaves_below(node: fdl.Buildable, path: Path) -> Iterator[Leaf]:
    hints = types.type_hints(fdl.get_callable(node))
    for name, value in arguments(node).items():
        declared = hints.get(name, Any)
        yield from _opened(Leaf((*path, name), value, False, declared, node, str(name)))


def _opened(leaf: Leaf) -> Iterator[Leaf]:
    value = leaf.value
    if isinstance(value, fdl.Buildable):
        yield dataclasses.replace(leaf, value=fdl.get_callable(value), is_component=True)
        yield from _leaves_below(value, leaf.path)
        return
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list | tuple) and any(True for _ in components(value)):
        items = list(enumerate(value))
    for step, item in items:
        path, steps = (*leaf.path, step), (*leaf.steps, step)
        declared = types.element_type(leaf.declared, value, step)
        inner = dataclasses.replace(leaf, path=path, value=item, declared=declared, steps=steps)
        yield from _opened(inner)
    if not items:
        yield leaf


def components(config: Any, *, parents_first: bool = False) -> Iterator[tuple[Path, fdl.Buildable]]:
    """Yields a pair (first path, component) for each component, children before their parents.

    If `parents_first` is true, parents are yielded before their children instead.
    """

    def visit(value: Any, state: daglish.State) -> Iterator[tuple[Path, fdl.Buildable]]:
        here: list[tuple[Path, fdl.Buildable]] = []
        if isinstance(value, fdl.Buildable):
            here = [(tuple(map(_step, state.current_path)), value)]
        if parents_first:
            yield from here
        for inside in state.yield_map_child_values(value, ignore_leaves=True):
            yield from inside
        if not parents_first:
            yield from here

    # A shared value is yielded once, because its generator is exhausted on the second visit.
    return visit(config, daglish.MemoizedTraversal(visit, config).initial_state())


def _step(element: daglish.PathElement) -> Any:
    match element:
        case daglish.Attr(name):
            return name
        case daglish.Key(step) | daglish.Index(step):
            return step


def complete(config: fdl.Buildable) -> fdl.Buildable:
    """Returns a copy of a config in which overrides can set all fields, even inside default values.

    Default factories are called, dataclass instances become components, and values are converted to
    their declared types (such as 1 to 1.0 or a list to a tuple). Shared components remain shared.
    """
    config = copy.deepcopy(config)
    _complete(config)
    return config


def _complete(config: Any) -> None:
    for _, node in list(components(config)):
        hints = types.type_hints(fdl.get_callable(node))
        for name, parameter in parameters(node).items():
            if name in node.__arguments__:
                value = node.__arguments__[name]
                if _has_instance(value):
                    with provenance.set_by(provenance.location(node, name)):
                        value = _as_components(value)
                with contextlib.suppress(types.Mismatch):  # `find_problems` reports mismatches.
                    node.__arguments__[name] = types.convert(value, hints.get(name, Any))
                continue
            field = _dataclass_field(node, name)
            if field is not None and field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            elif _has_instance(parameter.default):
                default = parameter.default
            else:
                continue
            with provenance.set_by("default"):
                value = _as_components(default)
                _complete(value)
                setattr(node, name, value)


def _has_instance(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(map(_has_instance, value.values() if isinstance(value, dict) else value))
    if isinstance(value, functools.partial):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type | fdl.Buildable)


def _as_components(value: Any) -> Any:
    """Converts dataclass instances and partial functions, at any depth, to configs.

    Unlike Fiddle's `convert_dataclasses_to_configs`, this function creates separate configs for two
    fields with the same default instance, and does not copy dicts that contain no instances.
    """
    if not _has_instance(value):
        return value
    if isinstance(value, dict):
        return {key: _as_components(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_as_components, value))
    if isinstance(value, functools.partial):
        given = {name: _as_components(item) for name, item in value.keywords.items()}
        return fdl.Partial(value.func, *map(_as_components, value.args), **given)
    names = (field.name for field in dataclasses.fields(value) if field.init)
    return fdl.Config(type(value), **{name: _as_components(getattr(value, name)) for name in names})


def from_instance(instance: Any) -> fdl.Config:
    """Converts a dataclass instance to a config; values get the origin "the arguments of NAME"."""
    with history.suspend_tracking():
        config = _as_components(instance)
    for _, node in components(config):
        name = getattr(fdl.get_callable(node), "__name__", "?")
        provenance.record(node, f"the arguments of {name}")
    return config


def freeze_defaults(config: fdl.Buildable) -> fdl.Buildable:
    """Returns a copy of a config in which every default value is set explicitly."""
    config = complete(config)
    with history.suspend_tracking():
        fdl.materialize_defaults(config)
    return config


def known_paths(config: fdl.Buildable) -> list[str]:
    """Returns the paths of all components and values, and of fields that have no value."""
    found: dict[Path, None] = {leaf.path: None for leaf in leaves(config) if leaf.path}
    for path in list(found):
        found.update(dict.fromkeys(path[:length] for length in range(1, len(path))))
    for path, node in components(config):
        found.update(dict.fromkeys((*path, name) for name in parameters(node)))
    return list(map(format_path, found))
