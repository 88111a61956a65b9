"""What each process of a run does, as recorded in RUN_DIR/processes/INDEX.json."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

from mtf.storage import AnyPath
from mtf.writing import process_exists, write_atomically

FOLDER = "processes"
# A process that has not written for so many periods is silent.
_MISSED_WRITES = 4


@dataclasses.dataclass(frozen=True)
class ProcessState:
    """What a process of a run does.

    Attributes:
      index: number of the process, from 0.
      count: number of processes of the run.
      host: name of its host.
      pid: its process id.
      devices: its own devices.
      phase: what it does, such as "training" or "saving".
      step: the last step that it started; None before the first, and where there are no steps.
      progress: when it last made progress, in seconds since 1970.
      time: when this was written, in seconds since 1970.
      period: seconds between writes.
      ended: whether the process ended in order.
      done: what it has done so far, such as "2/5 tasks"; "" if the step says it.
    """

    index: int
    count: int
    host: str
    pid: int
    devices: tuple[str, ...]
    phase: str
    step: int | None
    progress: float
    time: float
    period: float
    ended: bool = False
    done: str = ""

    def condition(self, now: float) -> str:
        """Returns "running", "silent" (it has not written for long), "dead" or "ended"."""
        if self.ended:
            return "ended"
        if process_exists({"host": self.host, "pid": self.pid}) is False:
            return "dead"
        return "silent" if now - self.time > _MISSED_WRITES * self.period else "running"

    @property
    def doing(self) -> str:
        """The phase, the step and what is done as text."""
        step = "" if self.step is None else f"step {self.step:,}"
        return ", ".join(filter(None, (self.phase, step, self.done)))


def write_state(run_dir: AnyPath, state: ProcessState) -> None:
    """Writes the state of a process; creates the directory if necessary."""
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{state.index}.json", json.dumps(dataclasses.asdict(state)) + "\n")


def read_states(run_dir: AnyPath) -> list[ProcessState]:
    """Returns the states of the processes of the last run in a directory, by index."""
    states = []
    for file in (run_dir / FOLDER).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            fields = json.loads(file.read_text(encoding="utf-8"))
            fields["devices"] = tuple(fields["devices"])
            states.append(ProcessState(**fields))
    states.sort(key=lambda state: state.index)
    # An earlier run may have had more processes.
    return [state for state in states if state.index < states[0].count]


def remove_state(run_dir: AnyPath, index: int) -> None:
    """Removes the state of a process, and the directory of states if it is empty."""
    folder = run_dir / FOLDER
    (folder / f"{index}.json").unlink(missing_ok=True)
    if isinstance(folder, Path):
        with contextlib.suppress(OSError):  # Other processes have not removed theirs yet.
            folder.rmdir()


def stacks_file(run_dir: AnyPath, index: int) -> AnyPath:
    """Returns the file for the stacks of the threads of a process that hangs."""
    return run_dir / FOLDER / f"{index}.stacks.txt"
