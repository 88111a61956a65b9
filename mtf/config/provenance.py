"""Tracks the origin of each value: a line of a recipe, an override or a default."""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import AbstractContextManager
from typing import Any

import fiddle as fdl
from fiddle import history

from mtf.config.paths import Leaf, follow

_DEFAULT = history.Location("default", 0, None)
_FIDDLE = os.path.dirname(fdl.__file__) + os.sep


def in_file_of(function: Any) -> AbstractContextManager[Any]:
    """Returns a context manager that records which line of the function's file sets each value.

    If a recipe calls a builder that sets a value, the line of the call is recorded, for example
    `recipes/t5.py:12 (small → model.t5)`.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    own_file = code.co_filename if code is not None else None

    def provider() -> history.Location:
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename.startswith((_FIDDLE, __file__)):
            frame = frame.f_back
        setter = frame or sys._getframe()
        while frame is not None and frame.f_code.co_filename != own_file:
            frame = frame.f_back
        if frame is None or frame is setter:
            code = setter.f_code
            return history.Location(code.co_filename, setter.f_lineno, code.co_name)
        module = str(setter.f_globals.get("__name__", "")).rpartition(".")[2]
        called = f"{frame.f_code.co_name} → {module}.{setter.f_code.co_name}"
        return history.Location(frame.f_code.co_filename, frame.f_lineno, called)

    return history.custom_location(provider)


def set_by(origin: str | history.Location) -> AbstractContextManager[Any]:
    """Returns a context manager that records `origin` as the source of the values set within it."""
    location = history.Location(origin, 0, None) if isinstance(origin, str) else origin
    return history.custom_location(lambda: location)


def record(node: fdl.Buildable, origin: str) -> None:
    """Records `origin` as the source of all values currently set on a component."""
    with set_by(origin):
        for field, value in node.__arguments__.items():
            node.__argument_history__.add_new_value(field, value)


def location(node: fdl.Buildable, field: Any) -> history.Location:
    """Returns where a component's field was last set, or the location "default" if it is unset."""
    entries = _values_set(node, field)
    return entries[-1].location if entries else _DEFAULT


def of_field(node: fdl.Buildable, field: Any) -> str:
    """Returns a description of where a component's field was last set."""
    return _describe(location(node, field))


def of_leaf(leaf: Leaf) -> str:
    """Returns a description of where a leaf, possibly inside a container, was set to its value."""
    if not leaf.path:
        return of_field(leaf.node, "__fn_or_cls__")
    entries = _values_set(leaf.node, leaf.field)
    while len(entries) > 1 and leaf.steps:
        if follow(entries[-2].new_value, leaf.steps) != leaf.value:
            break
        entries.pop()
    return _describe(entries[-1].location if entries else _DEFAULT)


def _values_set(node: fdl.Buildable, field: Any) -> list[history.HistoryEntry]:
    """Returns the history entries that have set a field since it was last unset, oldest first."""
    entries: list[history.HistoryEntry] = []
    for entry in node.__argument_history__.get(field, []):
        if entry.new_value is history.DELETED:
            entries = []
        elif entry.kind is history.ChangeKind.NEW_VALUE:
            entries.append(entry)
    return entries


def _describe(location: history.Location) -> str:
    """Formats a location, for example `recipes/t5.py:12 (small)` or `--set x=1 (command line)`."""
    if location.line_number == 0:
        return location.filename
    name = os.path.relpath(location.filename)
    name = location.filename if name.startswith("..") else name
    function = f" ({location.function_name})" if location.function_name else ""
    return f"{name}:{location.line_number}{function}"
