"""Makes the inputs and targets of an example from the columns of a record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtf.base.errors import UserError, did_you_mean
from mtf.data.tasks.prompts.render import render_text

_COLUMN = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class FromColumns:
    """A function that makes inputs and targets from columns, for use as `to_text` of a `RowTask`.

    Attributes:
      inputs, targets: name of a column that contains text or numbers, a text with columns in
        braces such as `{question} {context}`, or a Jinja template such as `{{question | upper}}`.
        In Jinja, replace each `-` in a column name with `_`.
    """

    inputs: str
    targets: str

    @property
    def definition(self) -> str:
        """A text that identifies this function by its column names or templates."""
        return f"inputs {self.inputs!r}, targets {self.targets!r}"

    def __call__(self, row: Mapping[str, Any]) -> dict[str, str] | None:
        """Returns the inputs and targets of a record, or None if either is empty."""
        made = self.texts(row)
        return made if all(map(str.strip, made.values())) else None

    def texts(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Returns the inputs and targets of a record; raises UserError if a column is missing."""
        return {"inputs": _text(self.inputs, row), "targets": _text(self.targets, row)}


def is_template(text: str) -> bool:
    """Returns whether `text` is a template rather than the name of a column."""
    return _is_jinja(text) or _COLUMN.search(text) is not None


def _is_jinja(text: str) -> bool:
    return "{{" in text or "{%" in text


def _text(setting: str, row: Mapping[str, Any]) -> str:
    if _is_jinja(setting):
        return render_text(setting, row).strip()
    if is_template(setting):
        return _COLUMN.sub(lambda match: _filled(match[1].strip(), row), setting).strip()
    if setting not in row:
        raise _no_column(setting, row)
    value = row[setting]
    if not isinstance(value, str | int | float):
        raise UserError(
            f"column {setting!r} has type {type(value).__name__}; expected text or a number. To "
            f"use only part of its value, write a template such as {{{{{setting}[0]}}}}"
        )
    return str(value)


def _filled(name: str, row: Mapping[str, Any]) -> str:
    """Returns the value of a column, or of a Jinja expression such as `translation.en`."""
    if name in row:
        return str(row[name])
    if re.fullmatch(r"[\w -]*", name):
        raise _no_column(name, row)
    return render_text(f"{{{{{name.replace('-', '_')}}}}}", row)


def _no_column(name: str, row: Mapping[str, Any]) -> UserError:
    hint = did_you_mean(name, row)
    if any(len(each) > 40 for each in row):
        hint = " These are not names: the first line of a CSV or TSV file must name the columns."
    elif name in ("inputs", "targets"):  # the defaults of `recipes.finetune`
        inputs, targets = ["COLUMN", "COLUMN", *row][-2:]
        hint = (
            f" Name the columns: template='{inputs} ||| {targets}', or a text with columns: "
            f"template='summarize: {{{inputs}}} ||| {{{targets}}}'"
        )
    return UserError(f"there is no column {name!r}; the columns are {', '.join(row)}.{hint}")
