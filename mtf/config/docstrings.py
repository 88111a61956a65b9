"""Reads the descriptions of fields and arguments from docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any, NamedTuple

_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")
_ITEM = re.compile(r"  (\w+(?:, \w+)*): (.*)")


class Docstring(NamedTuple):
    """The parts of a docstring.

    Attributes:
      text: the text outside the sections.
      items: a dict mapping each field or argument to its description, which is one line.
    """

    text: str
    items: dict[str, str]

    @property
    def summary(self) -> str:
        """The first sentence without its period, or the first paragraph if that has no period."""
        paragraph = " ".join(self.text.partition("\n\n")[0].split())
        return re.split(r"\.(?=\s|$)", paragraph, maxsplit=1)[0]


def read(target: Any) -> Docstring:
    """Parses a docstring. The items of a class include those of its base classes."""
    parsed = _parse(target)
    items: dict[str, str] = {}
    for base in reversed(inspect.getmro(target)[1:]) if isinstance(target, type) else ():
        items |= _parse(base).items
    return Docstring(parsed.text, items | parsed.items)


def _parse(target: Any) -> Docstring:
    doc = inspect.cleandoc(target.__doc__ or "")
    if (
        isinstance(target, type)
        and dataclasses.is_dataclass(target)
        and doc.startswith(f"{target.__name__}(")
    ):
        doc = ""  # `dataclasses` generated this docstring.
    text: list[str] = []
    items: dict[str, str] = {}
    names: list[str] = []
    section = ""
    for line in doc.splitlines():
        if (heading := _SECTION.fullmatch(line)) is not None:
            section, names = heading[1], []
        elif not section or (line and not line.startswith(" ")):
            section = ""
            text.append(line)
        elif section in ("Args", "Attributes"):
            item = _ITEM.fullmatch(line)
            if item is not None:
                names = item[1].split(", ")
                items |= dict.fromkeys(names, item[2])
            elif line:
                items |= {name: f"{items[name]} {line.strip()}" for name in names}
    return Docstring("\n".join(text).strip(), items)
