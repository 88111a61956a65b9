"""The form of the tables that say what each gin binding becomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any


class Absent:
    """The type of `ABSENT`."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()  # no value, which differs from the value None


class NotTranslatedError(Exception):
    """A value of a binding that has no equivalent, with the reason."""


@dataclasses.dataclass(frozen=True)
class Row:
    """What one parameter of a gin configurable becomes.

    Attributes:
      parameter: the parameter's name.
      path: field of the config that takes the value; None if no field does.
      note: how the value is converted, or what mtf does instead. If the value has no equivalent,
        this is the reason that a user sees.
      convert: function from gin's value to the field's; raises NotTranslatedError.
      fixed: values for which mtf does the same without a setting. With `note`, other values are
        documented differences; without it, they are not understood.
      anything: whether no value changes what a run computes.
      equals: field that must have the same value, because mtf has only one for both.
      parts: configurable that the value may refer to → section of its parameters.
      default: value of the original if the parameter is not bound and that differs from mtf's.
      optional: whether the parameter may be left `%gin.REQUIRED`.
      refused: whether a value other than `fixed` is another network, which mtf does not have.
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

    @property
    def reason(self) -> str:
        """Why other values than `fixed` are not translated."""
        return self.note or f"mtf has only {' or '.join(map(repr, self.fixed))}"


@dataclasses.dataclass(frozen=True)
class Section:
    """The parameters of a configurable in one role.

    Attributes:
      name: the configurable as gin files write it, with its scope.
      rows: its parameters.
    """

    name: str
    rows: tuple[Row, ...]

    def row(self, parameter: str) -> Row | None:
        """Returns the row of a parameter, or None."""
        return next((row for row in self.rows if row.parameter == parameter), None)


def default_of(value: Any) -> Callable[[Any], Any]:
    """Returns a conversion of None, and of gin's 0 for "none", to `value`."""
    return lambda given: given or value


def as_tuple(value: Any) -> Any:
    """Returns lists as tuples, also inner ones."""
    return tuple(map(as_tuple, value)) if isinstance(value, list | tuple) else value


def one_of(*values: Any) -> Callable[[Any], Any]:
    """Returns a conversion that refuses all but some values."""

    def convert(value: Any) -> Any:
        if value not in values:
            raise NotTranslatedError(f"mtf has only {', '.join(map(repr, values))}")
        return value

    return convert
