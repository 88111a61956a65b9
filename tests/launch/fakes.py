"""Programs for PATH that record their arguments and answer as a test says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

_PROGRAM = """\
#!{python} -IS
import fcntl, json, os, sys, time

with open({folder!r} + "/state.json", "r+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    state = json.load(file)
    arguments = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    state["calls"].append(arguments)
    answer = {{}}
    for rule in state["rules"]:
        if rule["words"] in " ".join(arguments) and rule["times"] > 0:
            rule["times"] -= 1
            answer = rule
            break
    file.seek(0)
    file.truncate()
    json.dump(state, file)
sys.stdout.write(answer.get("stdout", ""))
sys.stderr.write(answer.get("stderr", ""))
sys.stdout.flush()
time.sleep(answer.get("seconds", 0))
sys.exit(answer.get("status", 0))
"""


class Fakes:
    """Fake programs in a directory that is all of PATH, apart from what `real` names.

    Args:
      folder: empty directory.
      names: names of the programs.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, names: Iterable[str]) -> None:
        self._state = folder / "state.json"
        self._state.write_text(json.dumps({"calls": [], "rules": []}))
        programs = folder / "bin"
        programs.mkdir()
        for name in names:
            program = programs / name
            program.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder)))
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def answer(self, words: str, stdout: str = "", times: int = 999, **more: Any) -> None:
        """Adds an answer to the calls that contain `words`; earlier rules come first.

        `more` may have stderr, status (exit status), and seconds (to sleep before the end).
        """
        state = json.loads(self._state.read_text())
        state["rules"].append({"words": words, "stdout": stdout, "times": times, **more})
        self._state.write_text(json.dumps(state))

    @property
    def calls(self) -> list[list[str]]:
        """The name and the arguments of each call so far."""
        calls: list[list[str]] = json.loads(self._state.read_text())["calls"]
        return calls


def ends(statuses: Mapping[int, Any], label: str = "worker") -> str:
    """What job.sh follow prints for workers that end: index → status."""
    return "".join(
        f"[{label} {index}] mtf.launch: process {index} ended with status {status}\n"
        for index, status in statuses.items()
    )
