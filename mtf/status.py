"""`python -m mtf.status RUN_DIR …` shows how far runs are, and whether they are running.

It reads only the files that a run writes, and imports neither Fiddle nor JAX.
"""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import ast
import dataclasses
import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtf.checkpoints.settings import METRIC_KINDS
from mtf.checkpoints.steps import (
    checkpoint_dir,
    checkpoints_dir,
    owed_evaluations,
    saved_steps,
)
from mtf.cluster.process_files import FOLDER, read_states
from mtf.command import exit_status, new_parser
from mtf.errors import UserError
from mtf.progress import count, duration
from mtf.run_end import END_FILE, read_end
from mtf.storage import AnyPath, StorePath, as_path
from mtf.writing import LOCK_FILE, T5X_CONFIG_FILE, lock_holder, process_exists

_EPILOG = """\
examples:
  python -m mtf.status runs/quickstart-20260101-120000
  python -m mtf.status runs/* --watch 10
  python -m mtf.status runs/* --json | jq 'select(.state == "failed")'

Speed, loss and ETA come from the last statistics (trainer.stats_period); they leave out the time of
evaluations and checkpoints. --watch ends when no run is running.
Of evaluation and inference jobs (their output_dir) and of token caches, it shows what the processes
do. Other paths are left out.
Exit status: 0 shown; 2 a path does not exist, or no path is a run directory.
"""
_TRAIN, *_EVALUATIONS = METRIC_KINDS
_CONFIG_FILE, _CACHE_FILE = "config.json", "cache.json"
# How SeqIO, with T5X, names the file of a task's results.
_SEQIO = "-metrics.jsonl"
# The last line of metrics.jsonl is shorter.
_TAIL_BYTES = 1 << 16
# How many processes a run's text lists.
_MAX_PROCESSES = 8
_CLEAR_SCREEN = "\x1b[H\x1b[2J"


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of a run, as far as its files show.

    Attributes:
      run_dir: the run directory.
      state: "running"; "on another host": its process is on a host that cannot be asked;
        "finished"; "stopped" by a signal; "failed"; "not running": how it ended is unknown, for
        example after `kill -9`.
      reason: the signal or the error that ended the run.
      process: host, pid, since and command of the process that locked the directory last.
      seconds_since_write: age of the newest file.
      step: step of the last statistics or, if that is later, of the last checkpoint.
      first_step: step of the initial checkpoint; 0 if there is none.
      train_steps: the last step of the run.
      steps_per_second: speed of training in the last statistics.
      tokens_per_second: the same in positions of inputs and targets, as on the run's terminal.
      eta_seconds: time until the last step, at this speed, of a run that may be running.
      loss: loss per target token in the last statistics.
      accuracy: accuracy of target tokens in the last statistics.
      checkpoint: path of the last complete checkpoint.
      checkpoint_step: its step.
      checkpoint_age_seconds: time since it was complete.
      evaluations: "training_eval/NAME" or "inference_eval/NAME" → the last results, with "step".
      processes: the fields of `ProcessState` for each process that the run has recorded, with its
        "condition": "running"; "silent": it has not written for long; "dead"; "ended" in order.
      engine: "mtf", or "t5x" for a run that was started with `--engine t5x`.
      trains: whether this is the directory of a training run, and not a token cache or the
        `output_dir` of an evaluation or inference job, which have only processes and a state.
      tasks: of a token cache, the numbers of tasks that are "complete" and "incomplete".
    """

    run_dir: str
    state: str
    reason: str | None
    process: Mapping[str, str | int]
    seconds_since_write: float | None
    step: int
    first_step: int
    train_steps: int | None
    steps_per_second: float | None
    tokens_per_second: float | None
    eta_seconds: float | None
    loss: float | None
    accuracy: float | None
    checkpoint: str | None
    checkpoint_step: int | None
    checkpoint_age_seconds: float | None
    evaluations: Mapping[str, Mapping[str, float | None]]
    processes: Sequence[Mapping[str, Any]]
    engine: str
    trains: bool
    tasks: Mapping[str, int] | None

    @property
    def may_be_running(self) -> bool:
        """Whether a process may be at work in the run directory."""
        return self.state in ("running", "on another host")


class NotARunError(UserError):
    """A path exists, but it is not a run directory."""


def read_status(run_dir: str | AnyPath) -> Status:
    """Returns the state of a run; raises UserError if the directory is not a run directory."""
    directory = as_path(run_dir)
    _check(directory)
    now, settings = time.time(), _settings(directory)
    statistics = _last_line(directory / _TRAIN / "metrics.jsonl")
    saved = saved_steps(directory)
    train_steps = settings.get("train_steps")
    first_step = settings.get("checkpoint.restore.step") or 0
    step = max(statistics.get("step", 0), *saved[-1:], first_step)
    processes = _processes(directory, now)
    state, reason = _state(directory, saved, train_steps, processes)
    written = _modified(directory / _TRAIN / "metrics.jsonl")
    speed = statistics.get("timing/steps_per_second")
    eta = None
    if speed and train_steps and written and state in ("running", "on another host"):
        since = now - written
        eta = max((train_steps - statistics["step"]) / speed - since, 0.0)
    names = ("batch_size", *(f"data.task_feature_lengths.{side}" for side in ("inputs", "targets")))
    batch_size, inputs, targets = (settings.get(name, 0) for name in names)
    tokens = batch_size * (inputs + targets)
    checkpoint = checkpoint_dir(directory, saved[-1]) if saved else None
    newest = max((t for t in map(_modified, _files(directory)) if t is not None), default=None)
    return Status(
        run_dir=str(run_dir),
        state=state,
        reason=reason,
        process=lock_holder(directory),
        seconds_since_write=None if newest is None else max(now - newest, 0.0),
        step=step,
        first_step=first_step,
        train_steps=train_steps,
        steps_per_second=speed,
        tokens_per_second=statistics.get(
            "timing/tokens_per_second", speed * tokens if speed and tokens else None
        ),
        eta_seconds=eta,
        loss=statistics.get("loss_per_target_token"),
        accuracy=statistics.get("accuracy"),
        checkpoint=None if checkpoint is None else str(checkpoint),
        checkpoint_step=saved[-1] if saved else None,
        checkpoint_age_seconds=None if checkpoint is None else now - _completed(checkpoint),
        evaluations=_evaluations(directory),
        processes=processes,
        engine="t5x" if (directory / T5X_CONFIG_FILE).is_file() else "mtf",
        trains=(directory / _CONFIG_FILE).is_file(),
        tasks=_tasks(directory),
    )


def _check(directory: AnyPath) -> None:
    """Raises UserError if there is no run directory."""
    names = (_CONFIG_FILE, _CACHE_FILE, LOCK_FILE)
    if (directory / FOLDER).is_dir() or any((directory / name).is_file() for name in names):
        return
    if not directory.is_dir():
        kind, what = (
            (NotARunError, "is a file") if directory.exists() else (UserError, "does not exist")
        )
        raise kind(f"{directory} {what}; expected the directory of a run (its model_dir).")
    found = [directory.parent, *directory.iterdir()]
    runs = sorted(str(each) for each in found if (each / _CONFIG_FILE).is_file())
    hint = f" Did you mean {' '.join(runs[:3])}{' …' * (len(runs) > 3)}?" if runs else ""
    raise NotARunError(f"{directory} is not a run directory: it has no config.json.{hint}")


def _settings(directory: AnyPath) -> dict[str, Any]:
    """Returns the numbers in config.txt, whose lines are `path = value`."""
    try:
        lines = (directory / "config.txt").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    wanted = ("train_steps", "batch_size", "data.task_feature_lengths.", "checkpoint.restore.step")
    pairs = (line.split(" = ", 1) for line in lines if line.startswith(wanted) and " = " in line)
    return {name: ast.literal_eval(value) for name, value in pairs}


def _tasks(directory: AnyPath) -> dict[str, int] | None:
    """Returns how many tasks of a token cache are complete and incomplete; None if it is none."""
    if not (directory / _CACHE_FILE).is_file():
        return None
    from mtf.cache.format import INCOMPLETE  # Imports NumPy.

    names = [file.parent.name for file in directory.glob("*/info.json")]
    incomplete = sum(name.endswith(INCOMPLETE) for name in names)
    return {"complete": len(names) - incomplete, "incomplete": incomplete}


def _processes(directory: AnyPath, now: float) -> list[dict[str, Any]]:
    return [
        {**dataclasses.asdict(process), "doing": process.doing, "condition": process.condition(now)}
        for process in read_states(directory)
    ]


def _state(
    directory: AnyPath,
    saved: Sequence[int],
    train_steps: int | None,
    processes: Sequence[Mapping[str, Any]],
) -> tuple[str, str | None]:
    """Returns the state of a run, and why it ended."""
    holder = lock_holder(directory)
    exists = process_exists(holder) if holder else False
    if exists and not _is_reused(holder):
        return "running", None
    end = read_end(directory)  # A run deletes it when it starts.
    if end is not None:
        return end.how, end.reason
    if exists is None or not holder:  # Stores have no locks.
        writes = any(process["condition"] == "running" for process in processes)
        if writes or holder:
            return "running" if writes else "on another host", None
    if saved and saved[-1] == train_steps and not owed_evaluations(directory, saved[-1]):
        return "finished", None
    tasks = _tasks(directory)
    if tasks and tasks["complete"] and not tasks["incomplete"]:
        return "finished", None
    return "not running", None


def _is_reused(holder: Mapping[str, str | int]) -> bool:
    """Returns whether another program got the id of a process that was killed."""
    try:
        content = Path(f"/proc/{holder['pid']}/cmdline").read_bytes()
        return shlex.join(content.decode().split("\0")[:-1]) != holder.get("command")
    except (OSError, UnicodeDecodeError):
        return False


def _evaluations(directory: AnyPath) -> dict[str, dict[str, float | None]]:
    found = {}
    for kind in _EVALUATIONS:
        files: list[AnyPath] = [*(directory / kind).glob("*/metrics.jsonl")]
        names = {file: file.parent.name for file in files}
        for file in (directory / kind).glob(f"*{_SEQIO}"):
            names[file] = file.name.removesuffix(_SEQIO)
        for file in sorted(names, key=str):
            if line := _last_line(file):
                found[f"{kind}/{names[file]}"] = line
    return found


def _last_line(file: AnyPath) -> dict[str, Any]:
    """Returns the last complete line of a metrics.jsonl; {} if there is none."""
    try:
        if isinstance(file, StorePath):
            lines = file.read_range(max(file.size() - _TAIL_BYTES, 0), None).splitlines()
        else:
            with file.open("rb") as stream:
                stream.seek(max(stream.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
                lines = stream.read().splitlines()
    except FileNotFoundError:
        return {}
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:  # The run is writing it.
            continue
        return found if isinstance(found, dict) else {}
    return {}


def _files(directory: AnyPath) -> Iterator[AnyPath]:
    """Yields files, and on this machine directories, that a run writes from time to time."""
    yield from (directory / name for name in ("environment.json", LOCK_FILE, END_FILE))
    if isinstance(directory, Path):
        yield from checkpoints_dir(directory).glob("checkpoint_*")
    for kind in METRIC_KINDS:
        yield from (directory / kind).rglob("*metrics.jsonl")
    if not (directory / _CONFIG_FILE).is_file():
        yield from (directory / FOLDER).glob("*.json")
        yield from directory.glob("*/info.json")


def _modified(path: AnyPath) -> float | None:
    """Returns when a file was written, in seconds since 1970; None if it does not exist."""
    try:
        return path.modified() if isinstance(path, StorePath) else path.stat().st_mtime
    except FileNotFoundError:
        return None


def _completed(checkpoint: AnyPath) -> float:
    """Returns when a checkpoint was complete, as Orbax has recorded it."""
    try:
        metadata = json.loads((checkpoint / "_CHECKPOINT_METADATA").read_text(encoding="utf-8"))
        return float(metadata["commit_timestamp_nsecs"]) / 1e9
    except (OSError, ValueError, TypeError, KeyError):
        return _modified(checkpoint) or time.time()  # An earlier version of Orbax wrote it.


def as_text(status: Status) -> str:
    """Returns the state of a run as text of several lines."""
    lines = [status.run_dir]

    def add(name: str, text: str) -> None:
        lines.append(f"  {name:<11} {text}")

    add("state", _state_text(status))
    for name, text in _process_lines(status):
        add(name, text)
    if status.tasks is not None:
        add("tasks", ", ".join(f"{number} {name}" for name, number in status.tasks.items()))
        if status.state in ("stopped", "failed", "not running"):
            add("to resume", "run the same command again")
    if not status.trains:
        return "\n".join(lines)
    add("step", _step_text(status))
    if status.steps_per_second:
        tokens = status.tokens_per_second
        speed = f"{status.steps_per_second:.3g} steps/s"
        add("speed", speed + (f", {count(tokens)} tokens/s" if tokens else ""))
    if status.eta_seconds is not None:
        add("ETA", duration(status.eta_seconds))
    if status.loss is not None:
        accuracy = f", accuracy {status.accuracy:.3f}" if status.accuracy is not None else ""
        add("loss", f"{status.loss:.4f} per target token{accuracy}")
    if status.checkpoint is None:
        add("checkpoint", "none")
    else:
        age = _ago(status.checkpoint_age_seconds)
        add("checkpoint", f"step {status.checkpoint_step}, {age}: {status.checkpoint}")
    for name, results in status.evaluations.items():
        add("evaluation", f"{name}: {_results_text(name, results)} (step {results['step']})")
    if status.state in ("stopped", "failed", "not running"):
        engine = "" if status.engine == "mtf" else f" --engine {status.engine}"
        add("to resume", f"python -m mtf.run --from {shlex.quote(status.run_dir)}{engine}")
    return "\n".join(lines)


def _state_text(status: Status) -> str:
    text = status.state
    if status.reason is not None:
        text += f" by {status.reason}" if status.state == "stopped" else f": {status.reason}"
    process = status.process
    if status.may_be_running:
        where = f"process {process.get('pid')} on {process.get('host')}"
        text = f"{text}: {where}, since {process.get('since')}"
    elif status.state == "not running" and process:
        text += f": process {process.get('pid')} was killed or crashed"
    return f"{text}; last file written {_ago(status.seconds_since_write)}"


def _process_lines(status: Status) -> list[tuple[str, str]]:
    """Returns lines about the processes: of all if they are few, otherwise those not running."""
    processes = [each for each in status.processes if each["condition"] != "ended"]
    if not processes or not (status.may_be_running or status.state in ("failed", "not running")):
        return []
    counts = Counter(each["condition"] for each in processes)
    lines = [("processes", ", ".join(f"{number} {name}" for name, number in counts.items()))]
    if len(processes) > _MAX_PROCESSES:
        processes = [each for each in processes if each["condition"] != "running"]
    now = time.time()
    for each in processes[:_MAX_PROCESSES]:
        who = f"{each['host']}, process id {each['pid']}"
        text = f"{each['doing']}, {_ago(now - each['progress'])} ({who})"
        if each["condition"] != "running":
            text = f"{each['condition']}, last sign {_ago(now - each['time'])}; before: {text}"
        lines.append((f"  {each['index']}", text))
    return lines


def _missing(status: Status) -> str:
    """Returns how many processes of a run do not answer, for a table; "" if all do."""
    names = [each["condition"] for each in status.processes]
    number = names.count("silent") + names.count("dead")
    if not number or not status.may_be_running:
        return ""
    return f", {number} of {len(names)} processes silent or dead"


def _step_text(status: Status) -> str:
    if not status.trains:
        return ""
    if status.train_steps is None:
        return f"{status.step:,}"
    total = max(status.train_steps - status.first_step, 1)
    done = (status.step - status.first_step) / total
    return f"{status.step:,} of {status.train_steps:,} ({done:.1%})"


def _results_text(name: str, results: Mapping[str, float | None]) -> str:
    if name.startswith("training_eval/"):
        shown = {"loss": "loss_per_target_token", "accuracy": "accuracy"}
    else:
        shown = {key: key for key in results if key != "step"}
    return "  ".join(f"{key} {_number(results.get(name))}" for key, name in shown.items())


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _ago(seconds: float | None) -> str:
    if seconds is None:
        return "at an unknown time"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def as_table(statuses: Sequence[Status]) -> str:
    """Returns a line per run, with a header."""
    rows = [("run", "state", "step", "loss", "steps/s", "ETA", "checkpoint", "written")]
    for status in statuses:
        state = status.state + (f" by {status.reason}" if status.state == "stopped" else "")
        state += _missing(status)
        speed, eta = status.steps_per_second, status.eta_seconds
        saved = status.checkpoint_step
        rows.append(
            (
                status.run_dir,
                state,
                _step_text(status),
                "" if status.loss is None else f"{status.loss:.4f}",
                "" if speed is None else f"{speed:.3g}",
                "" if eta is None else duration(eta),
                "" if saved is None else f"{saved}, {_ago(status.checkpoint_age_seconds)}",
                _ago(status.seconds_since_write),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _parser() -> argparse.ArgumentParser:
    description = "Show how far runs are, and whether they are running."
    parser = new_parser("status", description, _EPILOG)
    add = parser.add_argument
    add("run_dirs", nargs="+", metavar="RUN_DIR", help="run directory; several give a table")
    add("--json", action="store_true", help="print a JSON object per run, each on a line")
    add("--watch", type=float, metavar="SECONDS", help="repeat after so many seconds")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    options = _parser().parse_args(argv)
    return exit_status(lambda: _main(options), only_shows=True)


def _main(options: argparse.Namespace) -> None:
    if options.watch is not None and not options.watch > 0:
        raise UserError(f"--watch {options.watch:g}: expected a number of seconds greater than 0.")
    first = True
    while True:
        statuses, left_out = _read_all(options.run_dirs)
        if left_out and first:
            print(
                f"left out, because it is no run directory: {' '.join(left_out)}", file=sys.stderr
            )
        first = False
        clears = options.watch is not None and not options.json and sys.stdout.isatty()
        print((_CLEAR_SCREEN if clears else "") + _shown(statuses, options.json), flush=True)
        if options.watch is None or not any(status.may_be_running for status in statuses):
            return
        time.sleep(options.watch)


def _read_all(run_dirs: Sequence[str]) -> tuple[list[Status], list[str]]:
    """Returns the states of all runs, and the paths that were left out because they are no runs.

    A pattern such as `runs/*` also matches other directories. Raises a UserError if a path
    does not exist, or if no path is a run directory.
    """
    statuses, left_out, problems = [], [], []
    for run_dir in run_dirs:
        try:
            statuses.append(read_status(run_dir))
        except NotARunError as error:
            left_out.append((run_dir, str(error)))
        except UserError as error:
            problems.append(str(error))
    if problems or not statuses:
        raise UserError("\n".join([*problems, *(problem for _, problem in left_out)]))
    return statuses, [run_dir for run_dir, _ in left_out]


def _shown(statuses: Sequence[Status], as_json: bool) -> str:
    if as_json:
        return "\n".join(json.dumps(dataclasses.asdict(status)) for status in statuses)
    return as_text(statuses[0]) if len(statuses) == 1 else as_table(statuses)


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
