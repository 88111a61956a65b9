"""Declared types: what they allow, how they are written, what a value becomes under them."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from typing import Any, Literal, Union

import fiddle as fdl

from mtf.errors import UserError, did_you_mean


class Mismatch(Exception):
    """A value that its declared type does not allow; the text says what was expected."""


def type_hints(target: Any) -> dict[str, Any]:
    """Returns the annotations of a class's or function's parameters (and "return").

    Raises:
      UserError: where an annotation names something that does not exist.
    """
    source = target
    if inspect.isclass(target) and not dataclasses.is_dataclass(target):
        source = target.__init__
    try:
        return typing.get_type_hints(source)
    except NameError as error:
        raise UserError(
            f"Cannot read the types of {qualified_name(target)}: {error}. Annotations of what a "
            "recipe configures must be importable, not behind TYPE_CHECKING."
        ) from None
    except TypeError:  # A builtin or a callable object: it declares nothing.
        return {}


def qualified_name(target: Any) -> str:
    """Returns `module.Class` or `module.function`."""
    name = getattr(target, "__qualname__", None) or type(target).__qualname__
    return f"{getattr(target, '__module__', '?')}.{name}"


def members(declared: Any) -> tuple[Any, ...]:
    """Returns the alternatives of a union, or the type alone."""
    if typing.get_origin(declared) in (Union, types.UnionType):
        return typing.get_args(declared)
    return (declared,)


def describe(declared: Any) -> str:
    """Writes a type for people: `int or None`, `'full' or 'none'`, `tuple[str, ...]`."""
    parts: list[str] = []
    for member in members(declared):
        if typing.get_origin(member) is Literal:
            parts += [repr(value) for value in typing.get_args(member)]
        else:
            parts.append(_describe_one(member))
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} or {parts[-1]}"


def _describe_one(declared: Any) -> str:
    if declared is type(None) or declared is None:
        return "None"
    if declared is Any:
        return "anything"
    if declared is Ellipsis:
        return "..."
    arguments = typing.get_args(declared)
    if arguments and not isinstance(declared, list):
        origin = typing.get_origin(declared)
        name = getattr(origin, "__name__", str(origin))
        inner = (" | ".join(map(_describe_one, members(a))) for a in arguments)
        return f"{name}[{', '.join(inner)}]"
    return getattr(declared, "__name__", str(declared))


def allows_word(declared: Any) -> bool:
    """Returns whether a bare word can be meant: str, a Literal with strings, or anything."""
    return any(
        member in (str, Any)
        or (
            typing.get_origin(member) is Literal
            and any(isinstance(value, str) for value in typing.get_args(member))
        )
        for member in members(declared)
    )


def allows_sequence(declared: Any) -> bool:
    """Returns whether a tuple or a list can be meant."""
    return any(_origin(member) in (tuple, list) for member in members(declared))


def _origin(declared: Any) -> Any:
    return {
        collections.abc.Sequence: tuple,
        collections.abc.Mapping: dict,
    }.get(typing.get_origin(declared) or declared, typing.get_origin(declared) or declared)


def element_type(declared: Any, container: Any, step: Any) -> Any:
    """Returns the declared type of `container[step]`, a dict, list or tuple of type `declared`."""
    for member in members(declared):
        origin, arguments = _origin(member), typing.get_args(member)
        if origin is dict and isinstance(container, dict) and arguments:
            return arguments[1]
        if origin is list and isinstance(container, list) and arguments:
            return arguments[0]
        if origin is tuple and isinstance(container, tuple | list) and arguments:
            if len(arguments) == 2 and arguments[1] is Ellipsis:
                return arguments[0]
            if isinstance(step, int) and step < len(arguments):
                return arguments[step]
    return Any


def convert(value: Any, declared: Any) -> Any:
    """Returns `value` as `declared` has it: an int as float, a list as tuple; else unchanged.

    Raises:
      Mismatch: where the type does not allow the value.
    """
    alternatives = members(declared)
    for member in alternatives:
        if _is_exactly(value, member):
            return value
    first: Mismatch | None = None
    for member in alternatives:
        try:
            return _convert_one(value, member)
        except Mismatch as mismatch:
            # Of a container the inner complaint says more than "not a dict[str, int]".
            if first is None and str(mismatch):
                first = mismatch
    if first is not None:
        raise first
    raise Mismatch(f"expected {describe(declared)}, got {_show(value)}.{_hint(value, declared)}")


def _is_exactly(value: Any, declared: Any) -> bool:
    if declared is None or declared is type(None):
        return value is None
    return isinstance(declared, type) and type(value) is declared


def _convert_one(value: Any, declared: Any) -> Any:
    origin, arguments = _origin(declared), typing.get_args(declared)
    if isinstance(value, fdl.Buildable):
        if _buildable_fits(value, declared):
            return value
    elif declared is Any or isinstance(declared, typing.TypeVar):
        return value
    elif origin is Literal:
        for allowed in arguments:
            if type(value) is type(allowed) and value == allowed:
                return value
    elif declared is float:
        if type(value) in (int, float):
            return float(value)
    elif declared is int or declared is complex:
        if type(value) is declared:
            return value
    elif origin is tuple and isinstance(value, list | tuple):
        return _convert_tuple(value, declared, arguments)
    elif origin is list and isinstance(value, list | tuple):
        inner = arguments[0] if arguments else Any
        return _same(value, [_convert_inside(item, inner, i) for i, item in enumerate(value)])
    elif origin is dict and isinstance(value, dict):
        key_type, value_type = arguments or (Any, Any)
        converted = {
            _convert_inside(key, key_type, key): _convert_inside(item, value_type, key)
            for key, item in value.items()
        }
        return value if all(value[key] is item for key, item in converted.items()) else converted
    elif origin is collections.abc.Callable:
        if callable(value):
            return value
    elif origin is type:
        if isinstance(value, type):
            return value
    elif isinstance(origin, type) and issubclass(origin, fdl.Buildable):
        raise Mismatch(f"expected {describe(declared)}; write @builder(…) or @package.Class(…).")
    elif typing.is_typeddict(origin) or getattr(origin, "_is_protocol", False):
        return value  # Python itself cannot tell.
    elif isinstance(origin, type) and isinstance(value, origin):
        return value
    raise Mismatch("")


def _convert_tuple(value: Any, declared: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if not arguments:
        return _same(value, tuple(value))
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        every = arguments[0]
        return _same(value, tuple(_convert_inside(v, every, i) for i, v in enumerate(value)))
    if len(value) != len(arguments):
        raise Mismatch(
            f"expected {describe(declared)}: {len(arguments)} elements, not {len(value)}."
        )
    items = zip(range(len(value)), value, arguments, strict=True)
    return _same(value, tuple(_convert_inside(v, t, i) for i, v, t in items))


def _same(old: Any, new: Any) -> Any:
    """Returns `old` itself where nothing changed, so that what is shared stays shared."""
    if type(old) is type(new) and all(a is b for a, b in zip(old, new, strict=True)):
        return old
    return new


def _convert_inside(value: Any, declared: Any, step: Any) -> Any:
    try:
        return convert(value, declared)
    except Mismatch as mismatch:
        raise Mismatch(f"at [{step!r}]: {mismatch}") from None


def _buildable_fits(value: fdl.Buildable, declared: Any) -> bool:
    if declared is Any or isinstance(declared, typing.TypeVar):
        return True
    origin = _origin(declared)
    if isinstance(origin, type) and issubclass(origin, fdl.Buildable):  # A builder's parameter.
        inside = typing.get_args(declared)
        return isinstance(value, origin) and (
            not inside or any(_buildable_fits(value, member) for member in members(inside[0]))
        )
    if isinstance(value, fdl.Partial):
        return origin is collections.abc.Callable or not isinstance(origin, type)
    produced = fdl.get_callable(value)
    if not isinstance(produced, type):
        produced = type_hints(produced).get("return", Any)
    if produced is Any:
        return True
    produced = _origin(produced)
    if not isinstance(origin, type) or not isinstance(produced, type):
        return origin is produced
    return issubclass(produced, origin)


def _show(value: Any) -> str:
    if isinstance(value, fdl.Buildable):
        return f"a {getattr(fdl.get_callable(value), '__qualname__', '?')}"
    if value is None:
        return "None"
    return f"{type(value).__name__} {value!r}"


def _hint(value: Any, declared: Any) -> str:
    alternatives = members(declared)
    if type(value) is float and int in alternatives and value.is_integer():
        return f" Write {int(value)}."
    if type(value) in (int, float) and str in alternatives:
        return f" Write it in quotes: \"'{value}'\"."
    if isinstance(value, str):
        words = [
            word
            for member in alternatives
            if typing.get_origin(member) is Literal
            for word in typing.get_args(member)
            if isinstance(word, str)
        ]
        if words:
            return did_you_mean(value, words)
        return word_hint(value, declared)
    if not isinstance(value, fdl.Buildable) and any(map(is_component, alternatives)):
        return " Set its fields one by one, or swap the whole with @builder(…)."
    return ""


def is_component(declared: Any) -> bool:
    """Returns whether values of this type are built from a config of their own."""
    return isinstance(declared, type) and (
        dataclasses.is_dataclass(declared) or declared.__module__ not in ("builtins", "types")
    )


def word_hint(word: str, declared: Any) -> str:
    """Says what a bare word that is not allowed should have been, if that can be told."""
    alternatives = members(declared)
    constants = {"true": True, "false": False, "none": None, "null": None}
    if word.lower() in constants and any(
        _is_exactly(constants[word.lower()], member) for member in alternatives
    ):
        return f" Write {constants[word.lower()]}."
    if allows_sequence(declared):
        parts = [part.strip() for part in word.split(",")]
        return f' Write it as a list: "{parts!r}".'
    if any(map(is_component, alternatives)):
        return " Set its fields one by one, or swap the whole with @builder(…)."
    return ""
