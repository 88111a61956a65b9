"""Follows a page of docs/gallery as a person does who has a small machine and little data."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtf.cli.convert.command import main as convert
from mtf.cli.data import main as data
from mtf.cli.run import main as run
from tests import small

FOLDER = small.ROOT / "docs" / "gallery"
_BLOCK = re.compile(
    r"^(?:`(?P<file>[\w/.]+)`:\n\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_IMPORT = re.compile(r"^(?:from|import) (\w+)", re.M)
_MAINS = {"mtf.run": run, "mtf.convert": convert, "mtf data": data}
_BEST = re.compile(r"^best +\S*/(checkpoint_\d+) ", re.M)


class Reader:
    """Does what a page says, from top to bottom, in the working directory.

    A code block after the name of a file is that file. Other Python code runs if the packages that
    it imports are installed. Of the blocks without a language, those that install packages are left
    out; the commands of the others run.
    Where the page names a checkpoint by its step, the best one of the run is meant. Blocks of
    `text` show what is printed: each line has to begin like one that was printed.

    Attributes:
      printed: what each command printed, by the command.
      best: name of the best checkpoint of the last run.
      names: the variables of the Python code.
    """

    def __init__(self, page: str, small: Mapping[str, Sequence[str]]) -> None:
        """`small` has more arguments that make a command small, by what the command runs."""
        self.printed: dict[str, str] = {}
        self.names: dict[str, Any] = {}
        self._small = small
        self.best = ""
        for block in _BLOCK.finditer((FOLDER / f"{page}.md").read_text("utf-8")):
            self._follow(**block.groupdict())

    def _follow(self, file: str | None, kind: str, text: str) -> None:
        if file is not None:
            Path(file).write_text(text)
        elif kind == "python":
            if all(map(importlib.util.find_spec, _IMPORT.findall(text))):
                exec(self._with_best(text), self.names)
        elif kind == "text":
            printed = [line.split()[:1] for line in "\n".join(self.printed.values()).splitlines()]
            assert all(line.split()[:1] in printed for line in text.splitlines())
        elif not kind and not text.startswith("pip install"):
            for command in text.replace("\\\n", " ").split("python -m ")[1:]:
                self._run(shlex.split(self._with_best(command)))

    def _with_best(self, text: str) -> str:
        return re.sub(r"checkpoint_\d+", self.best, text) if self.best else text

    def _run(self, command: list[str]) -> None:
        module, *arguments = (
            command if command[0] != "mtf" else [" ".join(command[:2]), *command[2:]]
        )
        name = arguments[0].partition("(")[0]
        arguments += self._small.get(name, [])
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            assert _MAINS[module](arguments) == 0
        self.printed[" ".join(command)] = output.getvalue()
        if found := _BEST.search(output.getvalue()):
            self.best = found[1]
