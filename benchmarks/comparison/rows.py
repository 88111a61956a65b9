"""The rows of the comparison: what is asked of each program, and what counts as an answer.

A row has points. A program that meets all of them gets "yes", one that meets none "no", any other
"partly" with the points that it lacks.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A row of the table.

    Attributes:
      title: its name.
      question: what is done.
      points: what a program should do.
    """

    title: str
    question: str
    points: tuple[str, ...]


ROWS = {
    "typo": Row(
        "typo",
        "a setting is misspelt",
        (
            "refuses it with an exit status other than 0",
            "names the misspelt setting",
            "suggests the right name",
        ),
    ),
    "type_error": Row(
        "type error",
        "an integer setting gets a word",
        (
            "refuses it with an exit status other than 0",
            "names the setting and the value",
            "names the expected type",
            "prints no traceback",
        ),
    ),
    "all_at_once": Row(
        "all at once",
        "two misspelt settings and a wrong type in one command",
        ("names two of the three mistakes", "names all three mistakes"),
    ),
    "provenance": Row(
        "provenance",
        "where does a value come from?",
        (
            "names the file that sets a value",
            "names the line",
            "names the command line for what it sets",
        ),
    ),
    "diff": Row(
        "diff",
        "how does a changed config differ from the original?",
        ("shows the old and the new value", "as text, by a command"),
    ),
    "code": Row(
        "code",
        "the config as runnable code",
        ("code that makes an equal config", "by a command"),
    ),
    "rerun": Row(
        "rerun",
        "run a finished run again from what it stored",
        ("gives the same result", "needs nothing that the program itself has to store"),
    ),
    "completion": Row(
        "completion",
        "TAB in a shell",
        ("offers settings", "offers values", "has scripts for zsh and fish, too"),
    ),
    "sweep": Row(
        "sweep",
        "run all combinations of two settings with two values each",
        ("runs all four", "has a folder for each run", "by one command"),
    ),
    "help_on_a_value": Row(
        "help on a value",
        "what is one setting?",
        (
            "tells its meaning",
            "its type",
            "its default",
            "its value after a change on the command line",
            "of settings inside components, too",
            "without all others",
        ),
    ),
    "nested_overrides": Row(
        "nested overrides",
        "replace the optimizer by another with an argument, and set a value two levels below it",
        ("replaces the component with its argument", "sets the nested value"),
    ),
    "expressions": Row(
        "expressions",
        "arithmetic in values",
        ("computes a value", "from 2**20, without code in the program"),
    ),
}
