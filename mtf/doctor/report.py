"""The sections of the report, and what it hides: secrets, the home directory, the user's name."""

from __future__ import annotations

import dataclasses
import getpass
import os
import re
from collections.abc import Sequence
from pathlib import Path

_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY_OF_URL = re.compile(r"(://[^\s?]+\?)\S+")


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
      title: its first line.
      rows: (name, text) of its other lines.
      problems: what is wrong, each with what to do.
      works: False if training cannot work.
    """

    title: str
    rows: Sequence[tuple[str, str]]
    problems: Sequence[str] = ()
    works: bool = True

    def __str__(self) -> str:
        width = max((len(name) for name, _ in self.rows), default=0)
        lines = (f"  {name:<{width}}  {shown(text)}".rstrip() for name, text in self.rows)
        return "\n".join([self.title, *lines])


def shown(text: str) -> str:
    """Returns a text without the home directory, the user's name in paths, and parts of URLs.

    The parts of URLs that may be secret are the user with the password, and the query.
    """
    home = str(Path.home())
    if home != "/":
        text = re.sub(rf"{re.escape(home)}(?=$|[/\s:,;'\")])", "~", text)
    text = re.sub(rf"(?<=/){re.escape(_user())}(?=$|[/\s:,;'\")])", "USER", text)
    return _QUERY_OF_URL.sub(r"\1…", _USER_IN_URL.sub("…@", text))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # The user has no name, as in some containers.
        return str(os.getuid())
