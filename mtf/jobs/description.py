"""Describes a job for `--dry-run`, including problems that would make the job fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar
from urllib.error import HTTPError, URLError

from mtf.base.errors import NotCheckedError, UserError, conversion_as_user_errors, with_causes
from mtf.config import summarize

T = TypeVar("T")


@dataclasses.dataclass
class Description:
    """The description of a job, with the results of checks; `str()` returns an aligned table.

    Attributes:
      rows: a dict mapping the name of each row in the table to its value.
      problems: messages about problems that would make the job fail when it starts.
      unreached: messages about servers that cannot be reached; the job fails if this stays so.
    """

    rows: dict[str, str] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    unreached: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        width = max(map(len, self.rows))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self.rows.items())

    def add(self, name: str, check: Callable[[], T], text: Callable[[T], str] = str) -> T | None:
        """Runs `check`, which must raise an error if the job would fail when it starts.

        Returns the result of `check` and adds `text(result)` to `rows`. After an error, returns
        None and adds the message to `problems`, or to `rows` if nothing could be checked.
        """
        try:
            with conversion_as_user_errors():
                found = check()
            self.rows[name] = text(found)
            return found
        except UserError as error:
            is_unreached = _is_network_failure(error)
            if isinstance(error, NotCheckedError) or is_unreached:
                self.rows[name] = f"not checked: {error}"
                self.unreached += [str(error)] * is_unreached
            else:
                self.rows[name] = "refused; see the message below"
                self.problems += [str(error)] * (str(error) not in self.problems)
        return None

    def check(self) -> None:
        """Raises a UserError that lists all problems, if there are any."""
        if self.problems:
            raise UserError(summarize(self.problems))


def _is_network_failure(error: BaseException) -> bool:
    """Returns whether an error or one of its causes is a failure to reach a server."""
    return any(
        getattr(each, "kind", None) == "network"
        or (isinstance(each, URLError) and not isinstance(each, HTTPError))
        for each in with_causes(error)
    )
