"""Shows the progress of runs and whether they are running (`python -m mtf status RUN_DIR …`).

The command only reads files that the runs have written. It imports neither Fiddle nor JAX.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtf.base import strict_json
from mtf.base.environment import resume_command
from mtf.base.errors import UserError
from mtf.base.processes.records import FOLDER, read_states
from mtf.base.progress import count, duration
from mtf.base.run_end import END_FILE, read_end
from mtf.base.writing import LOCK_FILE, T5X_CONFIG_FILE, lock_holder, process_exists
from mtf.checkpoints.settings import METRIC_KINDS
from mtf.checkpoints.steps import (
    checkpoint_dir,
    checkpoints_dir,
    owed_evaluations,
    saved_steps,
)
from mtf.cli.command import exit_status, new_parser
from mtf.storage import AnyPath, as_path, is_remote, read_range

_EPILOG = """\
examples:
  python -m mtf status runs/quickstart-20260101-120000
  watch -n 10 python -m mtf status runs/*
  python -m mtf status runs/* --json | jq 'select(.state == "failed")'

Speed, loss and ETA come from the latest statistics (trainer.stats_period). Speed and ETA do not
include the time that evaluations and checkpoints take.
The command also accepts token caches and the output_dir of evaluation and inference jobs; for
these, it shows what the processes are doing. Other existing paths are skipped.
Exit status: 0 on success; 2 if a path does not exist or if all paths would be skipped.
"""
_TRAIN, *_EVALUATIONS = METRIC_KINDS
_CONFIG_FILE, _CACHE_FILE = "config.json", "cache.json"
# With T5X, SeqIO writes the results of the task NAME to NAME-metrics.jsonl.
_SEQIO = "-metrics.jsonl"
_TAIL_BYTES = 1 << 16  # longer than any line of metrics.jsonl
_MAX_PROCESSES = 8  # If there are more, only those that are not running are listed.
_RUNNING = ("running", "on another host")
_METADATA = "_CHECKPOINT_METADATA"


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of a run, as recorded in its files; unknown values are None.

    Attributes:
      run_dir: the run directory.
      state: "running", "on another host" if its processes are not visible from this machine,
        "finished", "stopped" if a signal ended it, "failed", or "not running" if the run left no
        record of its end.
      reason: the signal or the error that ended the run.
      process: a dict that describes the process that last locked the directory, with the keys
        "host", "pid", "since" (the time when the process started) and "command".
      seconds_since_write: the time since the run last wrote a file.
      step: the step of the latest statistics or of the latest checkpoint, whichever is later.
      first_step: the step of the initial checkpoint, or 0 if there is none.
      train_steps: the last step of the run.
      steps_per_second, tokens_per_second: the training speed in the latest statistics.
      eta_seconds: the remaining time at `steps_per_second`, or None if the run is not running.
      loss, accuracy: the loss per target token and the accuracy of target tokens in the latest
        statistics.
      checkpoint, checkpoint_step: the path and step of the latest complete checkpoint.
      checkpoint_age_seconds: the time since `checkpoint` was completed.
      evaluations: a dict mapping "training_eval/NAME" and "inference_eval/NAME" to the latest
        results of the evaluation and their "step".
      processes: for each recorded process, a dict of the fields of `ProcessState`, with two
        additional keys, "doing" and "condition".
      engine: "mtf", or "t5x" for a run that was started with `--engine t5x`.
      trains: whether this is a training run. A token cache and the `output_dir` of an evaluation
        or inference job have only processes and a state.
      tasks: the numbers of "complete" and "incomplete" tasks of a token cache.
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


def read_status(run_dir: str | AnyPath) -> Status:
    """Returns the state of the run in a directory."""
    directory = as_path(run_dir)
    now, settings = time.time(), _settings(directory)
    statistics_file = directory / _TRAIN / "metrics.jsonl"
    statistics, written = _last_line(statistics_file), _modified(statistics_file)
    saved = saved_steps(directory)
    train_steps = settings.get("train_steps")
    first_step = settings.get("checkpoint.restore.step") or 0
    processes = [
        {**dataclasses.asdict(each), "doing": each.doing, "condition": each.condition(now)}
        for each in read_states(directory)
    ]
    tasks = _tasks(directory)
    state, reason = _state(directory, saved, train_steps, processes, tasks)
    speed, eta = statistics.get("timing/steps_per_second"), None
    if speed and train_steps and written and state in _RUNNING:
        eta = max((train_steps - statistics["step"]) / speed - (now - written), 0.0)
    checkpoint = checkpoint_dir(directory, saved[-1]) if saved else None
    # Orbax writes this file when a checkpoint is complete.
    completed = None if checkpoint is None else _modified(checkpoint / _METADATA)
    newest = max((t for t in map(_modified, _files(directory)) if t is not None), default=None)
    return Status(
        run_dir=str(run_dir),
        state=state,
        reason=reason,
        process=lock_holder(directory / LOCK_FILE),
        seconds_since_write=None if newest is None else max(now - newest, 0.0),
        step=max(statistics.get("step", 0), *saved[-1:], first_step),
        first_step=first_step,
        train_steps=train_steps,
        steps_per_second=speed,
        tokens_per_second=statistics.get("timing/tokens_per_second"),
        eta_seconds=eta,
        loss=statistics.get("loss_per_target_token"),
        accuracy=statistics.get("accuracy"),
        checkpoint=None if checkpoint is None else str(checkpoint),
        checkpoint_step=saved[-1] if saved else None,
        checkpoint_age_seconds=None if completed is None else now - completed,
        evaluations=_evaluations(directory),
        processes=processes,
        engine="t5x" if (directory / T5X_CONFIG_FILE).is_file() else "mtf",
        trains=(directory / _CONFIG_FILE).is_file(),
        tasks=tasks,
    )


def _settings(directory: AnyPath) -> dict[str, Any]:
    """Returns `train_steps` and `checkpoint.restore.step` in config.txt; {} without this file."""
    try:
        lines = (directory / "config.txt").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    wanted = ("train_steps = ", "checkpoint.restore.step = ")
    pairs = (line.split(" = ", 1) for line in lines if line.startswith(wanted))
    return {name: ast.literal_eval(value) for name, value in pairs}


def _tasks(directory: AnyPath) -> dict[str, int] | None:
    """Returns the numbers of complete and incomplete tasks, or None if this is no token cache."""
    if not (directory / _CACHE_FILE).is_file():
        return None
    from mtf.data.cache.format import INCOMPLETE  # Imports NumPy.

    names = [file.parent.name for file in directory.glob("*/info.json")]
    incomplete = sum(name.endswith(INCOMPLETE) for name in names)
    return {"complete": len(names) - incomplete, "incomplete": incomplete}


def _state(
    directory: AnyPath,
    saved: Sequence[int],
    train_steps: int | None,
    processes: Sequence[Mapping[str, Any]],
    tasks: Mapping[str, int] | None,
) -> tuple[str, str | None]:
    """Returns the state of a run and the reason why it ended (None if unknown or running)."""
    holder = lock_holder(directory / LOCK_FILE)
    exists = process_exists(holder) if holder else False
    if exists and not _is_reused(holder):
        return "running", None
    if (end := read_end(directory)) is not None:  # A run deletes this record when it starts.
        return end.how, end.reason
    if exists is None or not holder:  # Remote directories have no locks.
        if any(process["condition"] == "running" for process in processes):
            return "running", None
        if holder:
            return "on another host", None
    is_at_end = saved and saved[-1] == train_steps and not owed_evaluations(directory, saved[-1])
    is_cached = tasks and tasks["complete"] and not tasks["incomplete"]
    return "finished" if is_at_end or is_cached else "not running", None


def _is_reused(holder: Mapping[str, str | int]) -> bool:
    """Returns whether the process id of the lock's holder now belongs to another program."""
    try:
        content = Path(f"/proc/{holder['pid']}/cmdline").read_bytes()
        return shlex.join(content.decode().split("\0")[:-1]) != holder.get("command")
    except (OSError, UnicodeDecodeError):
        return False


def _evaluations(directory: AnyPath) -> dict[str, dict[str, float | None]]:
    found = {}
    for kind in _EVALUATIONS:
        names = {file: file.parent.name for file in (directory / kind).glob("*/metrics.jsonl")}
        for file in (directory / kind).glob(f"*{_SEQIO}"):
            names[file] = file.name.removesuffix(_SEQIO)
        for file in sorted(names, key=str):
            if line := _last_line(file):
                found[f"{kind}/{names[file]}"] = line
    return found


def _last_line(file: AnyPath) -> dict[str, Any]:
    """Returns the last complete line of a metrics.jsonl file as a dict, or {} if there is none."""
    try:
        size = file.stat().st_size
        lines = bytes(read_range(file, max(size - _TAIL_BYTES, 0), size)).splitlines()
    except FileNotFoundError:
        return {}
    for line in reversed(lines):
        # The run may still be writing this line.
        with contextlib.suppress(ValueError, TypeError):
            return dict(strict_json.loads(line))
    return {}


def _files(directory: AnyPath) -> Iterator[AnyPath]:
    """Yields the files and local directories whose modification times reveal a run's last write."""
    yield from (directory / name for name in ("environment.json", LOCK_FILE, END_FILE))
    if not is_remote(directory):
        yield from checkpoints_dir(directory).glob("checkpoint_*")
    for kind in METRIC_KINDS:
        yield from (directory / kind).rglob("*metrics.jsonl")
    yield from (directory / FOLDER).glob("*.json")
    yield from directory.glob("*/info.json")


def _modified(path: AnyPath) -> float | None:
    """Returns a file's modification time in seconds since 1970, or None if it does not exist."""
    try:
        return float(path.stat().st_mtime)
    except FileNotFoundError:
        return None


def as_text(status: Status) -> str:
    """Returns the state of a run as multi-line text."""
    cells, process = _cells(status), status.process
    rows = [("state", cells.pop("state")), ("written", cells.pop("written"))]
    if process:
        where = f"{process.get('pid')} on {process.get('host')}, since {process.get('since')}"
        ended = "" if status.state in _RUNNING else "; it was killed or crashed"
        rows.append(("process", where + ended))
    rows += [*_process_rows(status), *cells.items()]
    if status.checkpoint is not None:
        rows.append(("", status.checkpoint))
    if status.tasks is not None:
        tasks = (f"{number} {name}" for name, number in status.tasks.items())
        rows.append(("tasks", ", ".join(tasks)))
    for name, results in status.evaluations.items():
        keys = {key: key for key in results if key != "step"}
        if name.startswith("training_eval/"):
            keys = {"loss": "loss_per_target_token", "accuracy": "accuracy"}
        found = ((key, results.get(each)) for key, each in keys.items())
        values = (f"{key} {'not finite' if v is None else f'{v:.4g}'}" for key, v in found)
        rows.append(("evaluation", f"{name}: {'  '.join(values)} (step {results['step']})"))
    if status.state in ("stopped", "failed", "not running") and (status.trains or status.tasks):
        engine = "" if status.engine == "mtf" else f" --engine {status.engine}"
        command = f"{resume_command(status.run_dir)}{engine}"
        rows.append(("to resume", command if status.trains else "run the same command again"))
    return "\n".join([status.run_dir, *(f"  {name:<11} {text}" for name, text in rows if text)])


def _process_rows(status: Status) -> list[tuple[str, str]]:
    """Returns rows for processes that have not ended; omits running ones if there are many."""
    processes = [each for each in status.processes if each["condition"] != "ended"]
    if not processes or status.state not in (*_RUNNING, "failed", "not running"):
        return []
    counts = Counter(each["condition"] for each in processes)
    rows = [("processes", ", ".join(f"{number} {name}" for name, number in counts.items()))]
    if len(processes) > _MAX_PROCESSES:
        processes = [each for each in processes if each["condition"] != "running"]
    now = time.time()
    for each in processes[:_MAX_PROCESSES]:
        text = f"{each['doing']}, {_ago(now - each['progress'])}"
        text += f" ({each['host']}, process id {each['pid']})"
        if each["condition"] != "running":
            text = f"{each['condition']}, last heartbeat {_ago(now - each['time'])}; before: {text}"
        rows.append((f"  {each['index']}", text))
    return rows


def _cells(status: Status) -> dict[str, str]:
    """Returns a dict mapping the names of the table's columns to the cells of a run's row."""
    state, step, speed, loss, checkpoint = status.state, "", "", "", ""
    if status.reason is not None:
        state += f" by {status.reason}" if state == "stopped" else f": {status.reason}"
    conditions = [each["condition"] for each in status.processes]
    missing = conditions.count("silent") + conditions.count("dead")
    if missing and state in _RUNNING:
        state += f", {missing} of {len(conditions)} processes silent or dead"
    if status.train_steps is not None:
        total = max(status.train_steps - status.first_step, 1)
        done = (status.step - status.first_step) / total
        step = f"{status.step:,} of {status.train_steps:,} ({done:.1%})"
    elif status.trains:
        step = f"{status.step:,}"
    if status.steps_per_second:
        tokens = status.tokens_per_second
        speed = f"{status.steps_per_second:.3g} steps/s"
        speed += f", {count(tokens)} tokens/s" if tokens else ""
    if status.loss is not None:
        loss = f"{status.loss:.4f}"
        loss += f", accuracy {status.accuracy:.3f}" if status.accuracy is not None else ""
    if status.checkpoint is not None:
        checkpoint = f"step {status.checkpoint_step}, {_ago(status.checkpoint_age_seconds)}"
    return {
        "state": state,
        "step": step,
        "speed": speed,
        "ETA": "" if status.eta_seconds is None else duration(status.eta_seconds),
        "loss": loss,
        "checkpoint": checkpoint,
        "written": _ago(status.seconds_since_write),
    }


def _ago(seconds: float | None) -> str:
    if seconds is None:
        return "at an unknown time"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def as_table(statuses: Sequence[Status]) -> str:
    """Returns a table with a header and one line for each run."""
    cells = [{"run": status.run_dir, **_cells(status)} for status in statuses]
    rows = [tuple(cells[0]), *(tuple(each.values()) for each in cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    title = "Show the progress of runs and whether they are running."
    parser = new_parser("status", title, _EPILOG)
    add = parser.add_argument
    add("run_dirs", nargs="+", metavar="RUN_DIR", help="run directory, or several for a table")
    add("--json", action="store_true", help="print a JSON object for each run, one per line")
    options = parser.parse_args(argv)
    return exit_status(lambda: _main(options), only_shows=True)


def _main(options: argparse.Namespace) -> None:
    statuses = [_checked_status(run_dir) for run_dir in _run_dirs(options.run_dirs)]
    if options.json:
        print("\n".join(json.dumps(dataclasses.asdict(status)) for status in statuses))
    else:
        print(as_text(statuses[0]) if len(statuses) == 1 else as_table(statuses))


def _checked_status(run_dir: str) -> Status:
    """Returns the state of a run; raises UserError if a file of the run is damaged."""
    try:
        status = read_status(run_dir)
        as_text(status)  # Values of a wrong type are noticed when they are shown.
    except (OSError, UserError):
        raise
    except Exception as error:  # Damaged files cause errors of many types.
        raise UserError(
            f"{run_dir} cannot be shown, because one of its files (config.txt, metrics.jsonl, "
            f"processes/, {LOCK_FILE}, {END_FILE}) is damaged: {type(error).__name__}: {error}."
        ) from error
    return status


def _run_dirs(paths: Sequence[str]) -> list[str]:
    """Returns the paths that are run directories; prints the others to stderr.

    Skips other directories, because a pattern such as `runs/*` may match them. Raises UserError if
    a path does not exist, or if no path is a run directory.
    """
    problems = {path: _problem(as_path(path)) for path in paths}
    refused = {path: problem for path, problem in problems.items() if problem is not None}
    if len(refused) == len(problems) or not all(as_path(path).exists() for path in refused):
        raise UserError("\n".join(refused.values()))
    if refused:
        print(f"skipped paths that are not run directories: {' '.join(refused)}", file=sys.stderr)
    return [path for path in paths if path not in refused]


def _problem(directory: AnyPath) -> str | None:
    """Returns why a path is not a run directory, or None if it is one."""
    names = (_CONFIG_FILE, _CACHE_FILE, LOCK_FILE)
    if (directory / FOLDER).is_dir() or any((directory / name).is_file() for name in names):
        return None
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "does not exist"
        return f"{directory} {what}; expected the directory of a run (its model_dir)."
    found = [directory.parent, *directory.iterdir()]
    runs = sorted(str(each) for each in found if (each / _CONFIG_FILE).is_file())
    hint = f" Did you mean {' '.join(runs[:3])}{' …' * (len(runs) > 3)}?" if runs else ""
    return f"{directory} is not a run directory: it contains no config.json.{hint}"
