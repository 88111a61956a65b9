"""Reads what docstrings say about fields and arguments."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any, NamedTuple

_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")
_ITEM = re.compile(r"  (\w+(?:, \w+)*): (.*)")


class Docstring(NamedTuple):
    """A docstring in parts.

    Attributes:
      text: what stands before the sections.
      items: field or argument → what it means, in one line.
    """

    text: str
    items: dict[str, str]

    @property
    def summary(self) -> str:
        """The first sentence, without its full stop, or the first paragraph without a sentence."""
        paragraph = " ".join(self.text.partition("\n\n")[0].split())
        return re.split(r"\.(?=\s|$)", paragraph, maxsplit=1)[0]


def read(target: Any) -> Docstring:
    """Returns the docstring of a class or a function in parts.

    A class has the items of its bases, too. A recipe has those of the recipes of its file to which
    its docstring refers, as in "as `t0pp_xxl`".
    """
    own = _parse(target)
    items: dict[str, str] = {}
    for base in reversed(inspect.getmro(target)[1:]) if isinstance(target, type) else ():
        items |= _parse(base).items
    if inspect.isfunction(target):
        for name in re.findall(r"\b[Aa]s `(\w+)`", own.text):
            other = target.__globals__.get(name)
            items |= _parse(other).items if inspect.isfunction(other) else {}
    return Docstring(own.text, items | own.items)


def _parse(target: Any) -> Docstring:
    doc = inspect.cleandoc(target.__doc__ or "")
    if (
        isinstance(target, type)
        and dataclasses.is_dataclass(target)
        and doc.startswith(f"{target.__name__}(")
    ):
        doc = ""  # `dataclasses` wrote it.
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
