"""Collects the problems in the lines of files and reports them in a single error."""

from __future__ import annotations

from mtf.base.errors import UserError

_NUM_SHOWN = 10


class Problems:
    """Counts the lines that cannot be used and stores the messages for the first ten of them.

    Attributes:
      count: number of lines that cannot be used.
    """

    def __init__(self, setting: str, what: str = "lines"):
        """Initializes an empty collection; messages name `setting` and call the lines `what`."""
        self.count = 0
        self._setting, self._what = setting, what
        self._shown: list[str] = []

    def add(self, text: str) -> None:
        """Adds a problem in the form `FILE:LINE: PROBLEM`."""
        self.count += 1
        if len(self._shown) < _NUM_SHOWN:
            self._shown.append(text)

    def merge(self, other: Problems) -> None:
        """Adds the problems of `other`."""
        self.count += other.count
        self._shown += other._shown[: _NUM_SHOWN - len(self._shown)]

    def check(self, advice: str = "") -> None:
        """Raises a UserError that ends with `advice` if there are any problems."""
        if not self.count:
            return
        if self.count == 1:
            raise UserError(". ".join((f"{self._setting}: {self._shown[0]}", advice)).strip(". "))
        num_more = self.count - len(self._shown)
        lines = [f"{self._setting}: {self.count:,} {self._what} cannot be used:"]
        lines += [f"  {text}" for text in self._shown]
        lines += [f"  … and {num_more:,} more"] if num_more else []
        lines += [advice] if advice else []
        raise UserError("\n".join(lines))
