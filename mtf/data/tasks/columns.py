"""Makes the inputs and targets of an example from the columns of a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtf.base.errors import UserError, did_you_mean
from mtf.data.tasks.prompts.render import render_text


@dataclass(frozen=True)
class FromColumns:
    """A function that makes inputs and targets from columns, for use as `to_text` of a `RowTask`.

    Attributes:
      inputs, targets: name of a column that contains text or numbers, or a Jinja template such as
        `{{question}} {{context}}`. In a template, replace each `-` in a column name with `_`.
    """

    inputs: str
    targets: str

    @property
    def definition(self) -> str:
        """A text that identifies this function by its column names or templates."""
        return f"inputs {self.inputs!r}, targets {self.targets!r}"

    def __call__(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Returns the inputs and targets of a record; raises UserError if a column is missing."""
        return {"inputs": _text(self.inputs, row), "targets": _text(self.targets, row)}


def is_template(text: str) -> bool:
    """Returns whether `text` is a Jinja template rather than the name of a column."""
    return "{{" in text or "{%" in text


def _text(setting: str, row: Mapping[str, Any]) -> str:
    if is_template(setting):
        return render_text(setting, row)
    if setting not in row:
        raise UserError(
            f"there is no column {setting!r}; the columns are {', '.join(row)}."
            f"{did_you_mean(setting, row)} A template, unlike a column name, contains '{{{{'"
        )
    value = row[setting]
    if not isinstance(value, str | int | float):
        raise UserError(
            f"column {setting!r} has type {type(value).__name__}; expected text or a number. To "
            f"use only part of its value, write a template such as {{{{{setting}[0]}}}}"
        )
    return str(value)
