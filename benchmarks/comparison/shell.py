"""Runs commands in a folder, and keeps what they said."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_SECONDS = 900.0
_COLORS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Said(NamedTuple):
    """A command, its exit status, and what it printed."""

    command: str
    status: int
    text: str


class Shell:
    """Runs commands in a folder with `environment`, and appends them to `said`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]):
        self.folder = folder
        self.environment = {**environment, "COLUMNS": "160", "TERM": "xterm"}
        self.said: list[Said] = []

    def run(self, *command: str, shown: str = "", **variables: str) -> Said:
        """Runs a command; `shown` is how to show it, if not as it is."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
        )
        names = "".join(f"{name}={value} " for name, value in variables.items())
        self.said.append(
            Said(f"{names}{shown or shlex.join(command)}", done.returncode, done.stdout)
        )
        return self.said[-1]

    def tab(self, line: str, source: str) -> Said:
        """Types `line` and TAB in bash, after the command `source`; returns what bash offers."""
        terminal, inner = pty.openpty()
        process = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=self.folder,
            env=self.environment,
        )
        os.close(inner)
        settings = ("show-all-if-ambiguous on", "page-completions off", "bell-style none")
        binds = "; ".join(f"bind 'set {each}'" for each in settings)
        try:
            # The quotes are in what is typed and echoed, but not in the prompt.
            _typed(terminal, f"{binds}; {source}; PS1=rea''dy:\n")
            # Control-U removes the line, so that it does not run.
            offered = _typed(terminal, f"{line}\t\x15\n")
        finally:
            process.kill()
            process.wait()
            os.close(terminal)
        self.said.append(Said(f"{line}<TAB>", 0, offered))
        return self.said[-1]


def _typed(terminal: int, text: str) -> str:
    """Types a text, and returns what is printed until the next prompt."""
    os.write(terminal, text.encode())
    printed, end = b"", time.monotonic() + _SECONDS
    while b"ready:" not in printed:
        if time.monotonic() > end:
            raise TimeoutError(printed.decode(errors="replace"))
        if select.select([terminal], [], [], 0.1)[0]:
            printed += os.read(terminal, 4096)
    shown = _COLORS.sub("", printed.decode(errors="replace")).replace("\r", "")
    return shown.partition("ready:")[0].replace("\x15", "").replace("^U", "")
