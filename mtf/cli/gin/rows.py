"""Defines the rows of the tables that translate gin bindings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ABSENT = object()  # marks a missing value, because None is a possible value


class NotTranslatedError(Exception):
    """Raised for a value that has no equivalent in mtf; the message gives the reason."""


@dataclasses.dataclass(frozen=True)
class Row:
    """Describes how one parameter of a gin configurable is translated.

    Attributes:
      parameter: the name of the parameter.
      path: the config field that takes the value, or None if there is no such field.
      note: how the value is converted, or what mtf does instead. Messages give this note as the
        reason why a value is not translated.
      convert: a function that converts the gin value for mtf; it may raise NotTranslatedError.
      fixed: values that match mtf's behavior and need no setting. Without `path`, other values are
        reported as a documented difference if there is a note, and as not understood otherwise.
      anything: whether the parameter is ignored because it never affects results.
      equals: the config field that must have the same value, because mtf has no separate setting.
      parts: a dict mapping each configurable that the value may reference to its section's name.
      default: the default value in the original framework, if mtf's default differs.
      optional: whether the parameter may still be `%gin.REQUIRED` after all files are read.
      refused: whether a value without an equivalent ends the translation with an error, because it
        changes the network, the optimizer's values or the data.
      optax: whether the value may be an optimizer of optax, which becomes its config.
      type: the type of the value, if `path` is not a field of the job's config.
    """

    parameter: str
    path: str | None = None
    note: str = ""
    convert: Callable[[Any], Any] | None = None
    fixed: tuple[Any, ...] = ()
    anything: bool = False
    equals: str | None = None
    parts: Mapping[str, str] | None = None
    default: Any = ABSENT
    optional: bool = False
    refused: bool = False
    optax: bool = False
    type: Any = ABSENT

    @property
    def reason(self) -> str:
        """The reason why values that are not in `fixed` are not translated."""
        return self.note or f"mtf supports only {' or '.join(map(repr, self.fixed))}"


@dataclasses.dataclass(frozen=True)
class Section:
    """The rows for a configurable in one role, such as `DatasetConfig` for evaluation data.

    Attributes:
      name: the name of the configurable in gin files, including its scope.
      rows: the rows for the parameters of the configurable.
    """

    name: str
    rows: Sequence[Row]

    def row(self, parameter: str) -> Row | None:
        """Returns the row for a parameter, or None if there is none."""
        return next((row for row in self.rows if row.parameter == parameter), None)


def fields(prefix: str, names: str = "", **defaults: Any) -> tuple[Row, ...]:
    """Returns a row for each name in `names` and `defaults`, with the field `prefix + name`."""
    rows = [Row(name, prefix + name) for name in names.split()]
    rows += [Row(name, prefix + name, default=value) for name, value in defaults.items()]
    return tuple(rows)


def ignored(names: str) -> tuple[Row, ...]:
    """Returns rows for parameters that do not affect results, or have no effect in mtf."""
    return tuple(Row(name, anything=True) for name in names.split())


def only(parameter: str, *values: Any, note: str = "") -> Row:
    """Returns a row for a parameter that mtf supports only with the given values."""
    return Row(parameter, fixed=values, note=note)


def must(parameter: str, *values: Any, note: str = "") -> Row:
    """Returns a row like `only`, for a parameter whose other values end the translation."""
    return Row(parameter, fixed=values, note=note, refused=True)


def table(**sections: tuple[Any, ...]) -> dict[str, Section]:
    """Returns a dict mapping names to sections, given arguments `name=(configurable, *rows)`."""
    return {name: Section(configurable, rows) for name, (configurable, *rows) in sections.items()}


def default_of(value: Any) -> Callable[[Any], Any]:
    """Returns a conversion that replaces None, 0 and other false values with `value`."""
    return lambda given: given or value


def as_tuple(value: Any) -> Any:
    """Converts lists, including nested lists, to tuples."""
    return tuple(map(as_tuple, value)) if isinstance(value, list | tuple) else value


def one_of(*values: Any) -> Callable[[Any], Any]:
    """Returns a conversion that accepts only the given values."""

    def convert(value: Any) -> Any:
        if value not in values:
            raise NotTranslatedError(f"mtf supports only {', '.join(map(repr, values))}")
        return value

    return convert
