"""Records, in RUN_DIR/processes/INDEX.json, what each process of a run is doing."""

from __future__ import annotations

import contextlib
import dataclasses
import json

from mtf.base import strict_json
from mtf.base.writing import process_exists, write_atomically
from mtf.storage import AnyPath

FOLDER = "processes"
# A process counts as silent after this many periods without a write.
_MISSED_WRITES = 4


@dataclasses.dataclass(frozen=True)
class ProcessState:
    """A record of what a process of a run is doing.

    Attributes:
      index: the number of the process, from 0.
      count: the number of processes in the run.
      host: the name of the process's host.
      pid: the process id.
      phase: the current activity, such as "training" or "saving".
      step: the last step that was started; None before the first step, or if there are no steps.
      progress: the time at which the process last made progress, in seconds since 1970.
      time: the time at which this record was written, in seconds since 1970.
      period: the number of seconds between writes.
      ended: whether the process recorded that it ended; False if it hung or was killed.
      done: the work that has been completed, such as "2/5 tasks"; "" if `step` shows this.
    """

    index: int
    count: int
    host: str
    pid: int
    phase: str
    step: int | None
    progress: float
    time: float
    period: float
    ended: bool = False
    done: str = ""

    def condition(self, now: float) -> str:
        """Returns "running", "silent" (no write for several periods), "dead" or "ended"."""
        if self.ended:
            return "ended"
        if process_exists({"host": self.host, "pid": self.pid}) is False:
            return "dead"
        return "silent" if now - self.time > _MISSED_WRITES * self.period else "running"

    @property
    def doing(self) -> str:
        """The phase, the step and the completed work as text, such as "training, step 1,000"."""
        step = "" if self.step is None else f"step {self.step:,}"
        return ", ".join(filter(None, (self.phase, step, self.done)))


def write_state(run_dir: AnyPath, state: ProcessState) -> None:
    """Writes the state of a process to the run directory."""
    folder = run_dir / FOLDER
    folder.mkdir(exist_ok=True)
    write_atomically(folder / f"{state.index}.json", json.dumps(dataclasses.asdict(state)) + "\n")


def read_states(run_dir: AnyPath) -> list[ProcessState]:
    """Returns the states of all processes of the latest run in a directory, sorted by index."""
    states = []
    for file in (run_dir / FOLDER).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            stored = strict_json.read_object(file)
            stored.pop("devices", None)  # Earlier versions recorded the devices, too.
            states.append(ProcessState(**stored))
    states.sort(key=lambda state: state.index)
    # An earlier run may have had more processes.
    return [state for state in states if state.index < states[0].count]
