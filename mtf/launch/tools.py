"""Runs the programs that mtf.launch needs (ssh, gcloud, kubectl), or prints them in a dry run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mtf.errors import RunError, UserError


class Done(NamedTuple):
    """How a program ended: its exit status, stdout, and stderr."""

    status: int
    output: str
    error: str

    @property
    def message(self) -> str:
        """What the program said, for a message of one paragraph."""
        return (self.error.strip() or self.output.strip() or f"exit status {self.status}").strip()


def check(done: Done, what: str, advice: Sequence[tuple[str, str]]) -> None:
    """Raises a RunError if a program failed.

    Args:
      what: what was done, such as "gcloud create".
      advice: regular expressions of the program's words, in lower case, and what to do then.
    """
    if done.status:
        found = [text for words, text in advice if re.search(words, done.message.lower())]
        raise RunError("\n".join([f"{what} failed: {done.message}", *found[:1]]))


class Tools:
    """Runs commands, which are lists of arguments; no local shell reads them.

    Args:
      dry_run: print the commands instead.
    """

    def __init__(self, dry_run: bool) -> None:
        self.dry_run = dry_run

    def need(self, program: str, advice: str) -> None:
        """Raises a UserError if a program is missing, except in a dry run."""
        if not self.dry_run and shutil.which(program) is None:
            raise UserError(
                f"{program} was not found. {advice} --dry-run shows what would be done without it."
            )

    def run(self, command: Sequence[str], stdin: Path | None = None) -> Done:
        """Runs a command to its end; in a dry run, it succeeds without output."""
        if self.dry_run:
            print(shlex.join(command) + (f" < {shlex.quote(str(stdin))}" if stdin else ""))
            return Done(0, "", "")
        with open(stdin or "/dev/null", "rb") as source:
            done = subprocess.run(
                command, stdin=source, capture_output=True, text=True, errors="replace", check=False
            )
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Starts a command whose stdout and stderr are read from one pipe."""
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
