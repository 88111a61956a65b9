"""Turns the plain text of docstrings to Markdown where they differ.

Markdown needs an empty line before a list, and between the paragraphs of a recipe ("Command: …",
"Hardware: …").
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_LABEL = re.compile(
    "(Paper|Source checkpoint|The original command|Command|Hardware|Expect|Deviations)[^.:]*: ?"
)
_ITEM = re.compile(r"\s*\* ")


class Paragraphs(griffe.Extension):
    """Adds these empty lines when a docstring is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = _with_paragraphs(obj.docstring.value)


def _with_paragraphs(text: str) -> str:
    lines: list[str] = []
    in_list = False
    for line in text.splitlines():
        starts_list = bool(_ITEM.match(line)) and not in_list
        if lines and lines[-1].strip() and (starts_list or _LABEL.match(line)):
            lines.append("")
        in_list = bool(line.strip()) and (in_list or starts_list)
        lines.append(line)
    return "\n".join(lines)
