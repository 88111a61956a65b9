"""Formats declared types, checks and converts values, and parses values from text."""

from __future__ import annotations

import ast
import collections.abc
import contextlib
import dataclasses
import difflib
import functools
import inspect
import sys
import types
import typing
from typing import Any, Literal, Union

import fiddle as fdl

from mtf.base.errors import UserError, did_you_mean, suggestion

_EXPECTED_BUILDER = (
    " Expected a dataclass, or a function with a return annotation such as fdl.Config[NAME]."
)
SWAP_HINT = " Set its fields one by one, or replace the component with @builder(…)."

# Cached because evaluating annotations takes most of the time needed to show a config.
_get_type_hints = functools.cache(typing.get_type_hints)


class Mismatch(Exception):
    """Raised if a value does not have its declared type; the message gives the expected type."""


def type_hints(target: Any) -> dict[str, Any]:
    """Returns a dict mapping the parameters of a callable, and "return", to their annotations."""
    is_plain_class = inspect.isclass(target) and not dataclasses.is_dataclass(target)
    try:
        return _get_type_hints(target.__init__ if is_plain_class else target)
    except NameError as error:
        with contextlib.suppress(NameError):
            return _hints_one_by_one(target.__init__ if is_plain_class else target)
        raise UserError(
            f"Cannot read the annotations of {qualified_name(target)}: {error}. Import their types "
            "outside `if TYPE_CHECKING`."
        ) from None
    except TypeError:  # A builtin or a callable object has no annotations.
        return {}


@functools.cache
def _hints_one_by_one(target: Any) -> dict[str, Any]:
    """Returns the annotations of a callable, with Any in place of those that cannot be evaluated.

    For example, Optax's type alias for a tree of arrays refers to itself by name.
    """
    hints: dict[str, Any] = {}
    for name, annotation in inspect.get_annotations(target, eval_str=True).items():
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(holder)
        except NameError:
            hints[name] = Any
    return hints


def qualified_name(target: Any) -> str:
    """Returns `module.Class` or `module.function`."""
    name = getattr(target, "__qualname__", None) or type(target).__qualname__
    return f"{public_module(str(getattr(target, '__module__', '?')), name)}.{name}"


def public_module(module: str, qualified: str) -> str:
    """Returns the public package that exports a class or function, or `module` if there is none.

    For example, `optax` exports `lion`, which is defined in the private module `optax._src.alias`.
    """
    public, private, _ = module.partition("._")
    target = _attribute(module, qualified)
    if private and target is not None:
        parts = public.split(".")
        for package in (".".join(parts[: end + 1]) for end in range(len(parts))):
            if _attribute(package, qualified) is target:
                return package
    return module


def _attribute(module: str, qualified: str) -> Any:
    """Returns the object with a qualified name in an imported module, or None if there is none."""
    value: Any = sys.modules.get(module)
    for name in qualified.split("."):
        value = getattr(value, name, None)
    return value


def members(declared: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or `(declared,)` for any other type.

    An abstract dataclass counts as the union of its subclasses.
    """
    if typing.get_origin(declared) in (Union, types.UnionType):
        return tuple(each for member in typing.get_args(declared) for each in members(member))
    if inspect.isabstract(declared) and hasattr(declared, "__dataclass_fields__"):
        return tuple(each for cls in declared.__subclasses__() for each in members(cls))
    return (declared,)


def _literals(declared: Any) -> list[Any]:
    return [
        value
        for member in members(declared)
        if typing.get_origin(member) is Literal
        for value in typing.get_args(member)
    ]


def _origin(declared: Any) -> Any:
    origin = typing.get_origin(declared) or declared
    return {collections.abc.Sequence: tuple, collections.abc.Mapping: dict}.get(origin, origin)


def describe(declared: Any) -> str:
    """Formats a type for messages, for example `'full' or 'none'` or `tuple[str, ...] or None`."""
    parts: list[str] = []
    for member in members(declared):
        parts += map(repr, _literals(member)) if _literals(member) else [_describe_one(member)]
    *others, last = parts
    return f"{', '.join(others)} or {last}" if others else last


def _describe_one(declared: Any) -> str:
    names = ((None, "None"), (type(None), "None"), (Any, "anything"), (Ellipsis, "..."))
    for special, name in names:
        if declared is special:
            return name
    if _origin(declared) is collections.abc.Callable:
        return "function"
    if arguments := typing.get_args(declared):
        origin = typing.get_origin(declared)
        inner = (" | ".join(map(_describe_one, members(a))) for a in arguments)
        return f"{getattr(origin, '__name__', origin)}[{', '.join(inner)}]"
    return getattr(declared, "__name__", str(declared))


def is_component(declared: Any) -> bool:
    """Returns whether values of this type are components."""
    return isinstance(declared, type) and (
        dataclasses.is_dataclass(declared) or declared.__module__ not in ("builtins", "types")
    )


def element_type(declared: Any, container: Any, step: Any) -> Any:
    """Returns the type of `container[step]` in a container of type `declared`; Any if unknown."""
    for member in members(declared):
        origin, arguments = _origin(member), typing.get_args(member)
        if not arguments:
            continue
        if origin is dict and isinstance(container, dict):
            return arguments[1]
        if origin is list and isinstance(container, list):
            return arguments[0]
        if origin is tuple and isinstance(container, tuple | list):
            if _is_variadic(arguments):
                return arguments[0]
            if isinstance(step, int) and step < len(arguments):
                return arguments[step]
    return Any


def choices(declared: Any) -> list[str]:
    """Returns those values of a type that can be listed, in the syntax of `--set` (`@`: class)."""
    found: list[str] = []
    for member in members(declared):
        if typing.get_origin(member) is Literal:
            found += map(str, typing.get_args(member))
        elif member is bool:
            found += ["True", "False"]
        elif member in (None, type(None)):
            found.append("None")
        elif is_component(member) and not _is_checkable_protocol(member):
            found.append(f"@{qualified_name(member)}")
    return found


def _is_variadic(arguments: tuple[Any, ...]) -> bool:
    return len(arguments) == 2 and arguments[1] is Ellipsis


def convert(value: Any, declared: Any) -> Any:
    """Converts a value to its declared type, for example an int to a float or a list to a tuple.

    Raises Mismatch if the value cannot be converted.
    """
    alternatives = members(declared)
    if any(_is_exactly(value, member) for member in alternatives):
        return value
    first: Mismatch | None = None
    for member in alternatives:
        try:
            return _convert_one(value, member)
        except Mismatch as mismatch:
            # A message about an element of a container is more precise than the one below.
            if first is None and str(mismatch):
                first = mismatch
    raise first or Mismatch(
        f"expected {describe(declared)}, got {_show(value)}.{_hint(value, declared)}"
    )


def _is_exactly(value: Any, declared: Any) -> bool:
    if declared is None or declared is type(None):
        return value is None
    return isinstance(declared, type) and type(value) is declared


def _convert_one(value: Any, declared: Any) -> Any:
    """Converts a value to a declared type that is neither a union nor exactly the value's type."""
    origin, arguments = _origin(declared), typing.get_args(declared)
    if isinstance(value, fdl.Buildable):
        made = fdl.get_callable(value)
        made = made if isinstance(made, type) else type_hints(made).get("return", Any)
        fits = _config_fits(type(value), made, declared)
    elif declared is Any or isinstance(declared, typing.TypeVar):
        fits = True
    elif origin is Literal:
        fits = any(type(value) is type(each) and value == each for each in arguments)
    elif declared is float and type(value) is int:
        return float(value)
    elif declared in (int, float, complex):  # Python would accept a bool as an int.
        fits = False
    elif origin in (list, tuple) and isinstance(value, list | tuple):
        return _convert_items(value, declared)
    elif origin is dict and isinstance(value, dict):
        key_type, value_type = arguments or (Any, Any)
        converted = {
            _convert_inside(key, key_type, key): _convert_inside(item, value_type, key)
            for key, item in value.items()
        }
        return value if all(value[key] is item for key, item in converted.items()) else converted
    elif origin is collections.abc.Callable:
        fits = callable(value)
    elif isinstance(origin, type) and issubclass(origin, fdl.Buildable):
        raise Mismatch(f"expected {describe(declared)}; write @builder(…) or @package.Class(…).")
    elif _is_checkable_protocol(origin):
        fits = isinstance(value, origin) and not isinstance(value, type)
    elif typing.is_typeddict(origin) or getattr(origin, "_is_protocol", False):
        fits = True  # This type cannot be checked.
    else:
        fits = isinstance(origin, type) and isinstance(value, origin)
    if not fits:
        raise Mismatch("")
    return value


def _is_checkable_protocol(declared: Any) -> bool:
    return getattr(declared, "_is_protocol", False) and declared._is_runtime_protocol


def _convert_items(value: Any, declared: Any) -> Any:
    """Converts the elements of a list or tuple; returns the same object if nothing changes."""
    origin, each = _origin(declared), typing.get_args(declared) or (Any,)
    if origin is list or _is_variadic(each) or not typing.get_args(declared):
        each = each[:1] * len(value)
    elif len(value) != len(each):
        raise Mismatch(f"expected {describe(declared)}, got {len(value)} elements.")
    steps = range(len(value))
    converted = origin(map(_convert_inside, value, each, steps))
    unchanged = type(value) is origin and all(value[i] is converted[i] for i in steps)
    return value if unchanged else converted


def _convert_inside(value: Any, declared: Any, step: Any) -> Any:
    try:
        return convert(value, declared)
    except Mismatch as mismatch:
        raise Mismatch(f"at [{step!r}]: {mismatch}") from None


def _config_fits(kind: type, produced: Any, declared: Any) -> bool:
    """Returns whether a component of a declared type can be a config `kind[produced]`.

    `kind` is fdl.Config or fdl.Partial, and `produced` is a class or an annotation.
    """
    if declared is Any or isinstance(declared, typing.TypeVar):
        return True
    origin = _origin(declared)
    if _is_config(declared):  # A parameter of a builder may be declared as a config.
        inside = members((*typing.get_args(declared), Any)[0])
        return issubclass(kind, origin) and any(_config_fits(kind, produced, m) for m in inside)
    if issubclass(kind, fdl.Partial):
        return origin is collections.abc.Callable or not isinstance(origin, type)
    return any(_is_produced(member, declared) for member in members(produced))


def _is_produced(produced: Any, declared: Any) -> bool:
    """Returns whether a class or annotation is the declared type or a subclass of it."""
    if produced is Any or declared is Any or isinstance(declared, typing.TypeVar):
        return True
    produced, origin = _origin(produced), _origin(declared)
    if not isinstance(origin, type) or not isinstance(produced, type):
        return origin is produced
    return issubclass(produced, origin)


def check_builder(builder: Any, name: str, declared: Any) -> None:
    """Checks that `@name` creates a component of the declared type, without calling the builder.

    Raises:
      UserError: if `builder` is not a dataclass, a class of the declared type, or a function whose
        return annotation is an `fdl.Config`.
      Mismatch: if the return annotation is a config of another type.
    """
    if isinstance(builder, type):
        named = any(isinstance(m, type) and issubclass(builder, m) for m in members(declared))
        if not (named or dataclasses.is_dataclass(builder)):
            raise UserError(f"{name} is a class, but not a dataclass.{_EXPECTED_BUILDER}")
        return
    if not callable(builder):
        raise UserError(f"{name} is a {type(builder).__name__}.{_EXPECTED_BUILDER}")
    returned = type_hints(builder).get("return", inspect.Parameter.empty)
    configs = [each for each in members(returned) if _is_config(each)]
    if not configs:
        says = "no return annotation"
        if returned is not inspect.Parameter.empty:
            says = f"the return annotation {describe(returned)}"
        makes = "".join(f" or {describe(m)}" for m in members(declared) if _is_open(m))
        raise UserError(
            f"{name} was not called, because it has {says}."
            f"{_EXPECTED_BUILDER.removesuffix('.')}{makes}."
        )
    made = [(_origin(each), (*typing.get_args(each), Any)[0]) for each in configs]
    if not any(_config_fits(*each, member) for each in made for member in members(declared)):
        raise Mismatch(f"expected {describe(declared)}, but {name} returns {describe(returned)}.")


def makes_value(function: Any, declared: Any) -> bool:
    """Returns whether a function's return annotation is the declared protocol or callable type.

    For example, `optax.lion` returns an optimizer and `optax.linear_schedule` returns a schedule.
    """
    if not inspect.isroutine(function):
        return False
    returned = type_hints(function).get("return", Any)
    return returned is not Any and any(
        _is_produced(returned, member) for member in members(declared) if _is_open(member)
    )


def is_value(function: Any, declared: Any) -> bool:
    """Returns whether a function itself, not its result, is a value of a declared callable type."""
    if not inspect.isroutine(function):
        return False
    returned = type_hints(function).get("return", Any)
    makes = makes_value(function, declared) or any(map(_is_config, members(returned)))
    return not makes and any(_origin(m) is collections.abc.Callable for m in members(declared))


def _is_open(declared: Any) -> bool:
    origin = _origin(declared)
    return origin is collections.abc.Callable or _is_checkable_protocol(origin)


def _is_config(annotation: Any) -> bool:
    origin = _origin(annotation)
    return isinstance(origin, type) and issubclass(origin, fdl.Buildable)


def parse(text: str, declared: Any) -> Any:
    """Parses a literal or a bare word; raises Mismatch if the type is wrong."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _parse_word(text, declared)
    return convert(value, declared)


def _parse_word(text: str, declared: Any) -> Any:
    expected = f"expected {describe(declared)}"
    if not text:
        hint = " For an empty string, quote twice: \"PATH=''\"." if str in members(declared) else ""
        raise Mismatch(f"{expected}, got no value.{hint}")
    if text[0] in "([{\"'":
        raise Mismatch(f"{expected}; {text} is not a complete Python literal.")
    if "," in text and _allows_sequence(declared):
        hint = _word_hint(text, declared)
        raise Mismatch(f"{expected}; {text} is neither a list nor a single word.{hint}")
    takes_any_word = any(member in (str, Any) for member in members(declared))
    if not (takes_any_word or any(isinstance(word, str) for word in _literals(declared))):
        raise Mismatch(f"{expected}, got the word {text}.{_word_hint(text, declared)}")
    return convert(text, declared)


def _allows_sequence(declared: Any) -> bool:
    return any(_origin(member) in (tuple, list) for member in members(declared))


def _show(value: Any) -> str:
    if isinstance(value, fdl.Buildable):
        return f"a {getattr(fdl.get_callable(value), '__qualname__', '?')}"
    return "None" if value is None else f"{type(value).__name__} {value!r}"


def _hint(value: Any, declared: Any) -> str:
    alternatives = members(declared)
    if type(value) is float and int in alternatives and value.is_integer():
        return f" Write {int(value)}."
    if type(value) in (int, float) and str in alternatives:
        return f" Write it in quotes: \"'{value}'\"."
    if isinstance(value, str):
        words = [word for word in _literals(declared) if isinstance(word, str)]
        return did_you_mean(value, words) if words else _word_hint(value, declared)
    if callable(value) and any(map(_is_checkable_protocol, alternatives)):
        return f" To call it, write fdl.Config({getattr(value, '__name__', value)}, …)."
    return "" if isinstance(value, fdl.Buildable) else _swap_hint(value, declared)


def _word_hint(word: str, declared: Any) -> str:
    """Returns a hint on how to write a word that the declared type does not allow, or ""."""
    alternatives = members(declared)
    constants = {"true": True, "yes": True, "false": False, "no": False, "none": None, "null": None}
    meant = constants.get(word.lower(), word)
    if meant is not word and any(_is_exactly(meant, member) for member in alternatives):
        return f" Write {meant}."
    if _allows_sequence(declared):
        parts = [part.strip() for part in word.split(",")]
        with contextlib.suppress(Mismatch):
            convert(parts, declared)
            return f' Write it as a list: "{parts!r}".'
    return _swap_hint(word, declared)


def _swap_hint(value: Any, declared: Any) -> str:
    """Returns a hint on how to replace a component, or "" if `declared` contains none."""
    if not any(map(is_component, members(declared))):
        return ""
    classes = {
        member.__name__.removesuffix("Config").lower(): member
        for member in members(declared)
        if is_component(member) and not _is_checkable_protocol(member)
    }
    near = difflib.get_close_matches(str(value).lower(), classes, n=1)
    return suggestion(_call_of(classes[each]) for each in near) or SWAP_HINT


def _call_of(component: type) -> str:
    """Returns `@module.Class`, with the arguments that it needs."""
    parameters = inspect.signature(component).parameters.values()
    needed = ", ".join(f"{each.name}=…" for each in parameters if each.default is each.empty)
    return f"@{qualified_name(component)}" + (f"({needed})" if needed else "")
