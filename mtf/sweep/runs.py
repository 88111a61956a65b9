"""Runs a recipe once for each combination of a sweep's values, one run after another.

`SWEEP_DIR/sweep.json` lists the runs; each has a directory of its own, `SWEEP_DIR/000` and so on.
The same command continues a sweep: finished runs are left out, and the others resume.
"""

from __future__ import annotations

import ctypes
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import fiddle as fdl

from mtf import config as config_lib
from mtf import signals
from mtf.errors import UserError
from mtf.run_end import read_end
from mtf.storage import AnyPath, as_path
from mtf.sweep import results
from mtf.sweep.values import Mode, combinations, parse_axis
from mtf.writing import write_atomically

PLAN = "sweep.json"
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux' prctl


class Sweep(NamedTuple):
    """A sweep as the command line describes it.

    Attributes:
      axes: texts `PATH=V1,V2,…`.
      mode: how values are combined, see `combinations`.
      number: number of runs, for the mode "random".
      metric: name of the metric that sorts the runs; None: see `_metric`.
      arguments: arguments of `mtf.run` for a run without the swept values.
    """

    axes: Sequence[str]
    mode: Mode
    number: int | None
    metric: str | None
    arguments: Sequence[str]


def run_sweep(config: fdl.Config, name: str, sweep: Sweep, *, dry_run: bool) -> int:
    """Runs a sweep and returns the exit status: 1 if a run failed.

    Args:
      config: the recipe's config with the overrides of the command line; its `model_dir` is the
        directory of the sweep.
      name: name of the recipe.
      sweep: what to run.
      dry_run: whether to only print the runs.

    Raises:
      UserError: values are wrong, or the directory holds another sweep or a run; nothing is
        written.
    """
    rows = combinations([parse_axis(text) for text in sweep.axes], sweep.mode, sweep.number)
    metric, order = _metric(config, sweep.metric)
    _check(config, rows)
    runs = {
        f"{i:03}": [f"{path}={value}" for path, value in row.items()] for i, row in enumerate(rows)
    }
    if dry_run:
        print(f"{len(runs)} runs, sorted by {metric} ({order})")
        for own, settings in runs.items():
            print(f"{own}  {' '.join(settings)}")
        return 0
    folder = as_path(config.model_dir or config_lib.new_run_dir(f"{name}-sweep"))
    _write_plan(folder, config, runs)

    def found(state_of: dict[str, str]) -> list[results.Result]:
        every = [
            results.Result(own, row, state_of[own], results.score_of(folder / own, metric, order))
            for own, row in zip(runs, rows, strict=True)
        ]
        return results.ranked(every, order)

    states = {own: "finished" if _is_finished(folder / own) else "to do" for own in runs}
    left = [own for own, state in states.items() if state == "to do"]
    if len(left) < len(runs):
        print(f"{folder}: {len(runs) - len(left)} of {len(runs)} runs are finished", flush=True)
    with signals.Interrupts() as interrupts:
        interrupts.hold()
        for own in left:
            which = f"run {int(own) + 1} of {len(runs)} ({own})"
            print(f"{which}: {' '.join(runs[own])}", flush=True)
            settings = [*runs[own], f"model_dir={folder / own}"]
            states[own] = _run(sweep.arguments, settings, folder / own, interrupts)
            results.write_table(folder, found(states), metric)
            results.write_plot(folder, found(states), metric)
            if interrupts.number:
                break
    print(results.as_text(found(states), metric), end="")
    print(f"table          {folder / results.TABLE}\nplot           {folder / results.PLOT}")
    if interrupts.number:
        command = shlex.join([*sweep.arguments, "--set", f"model_dir={folder}"])
        print(
            f"{interrupts.requested}: continue with the same --sweep: python -m mtf.run {command}"
        )
    return 1 if "failed" in states.values() else 0


def _metric(config: fdl.Config, asked: str | None) -> tuple[str, Literal["min", "max"]]:
    """Returns the metric that sorts runs: `asked`, the monitored one, or the training loss."""
    save = getattr(getattr(config, "checkpoint", None), "save", None)
    monitored = getattr(save, "metric_name_to_monitor", None)
    metric = asked or monitored or "train/loss_per_target_token"
    if metric == monitored and (mode := getattr(save, "metric_mode", None)):
        return metric, mode
    smaller = any(word in metric for word in ("loss", "perplexity", "edit_distance"))
    return metric, "min" if smaller else "max"


def _check(config: fdl.Config, rows: Sequence[dict[str, str]]) -> None:
    """Raises UserError with all mistakes of the runs, each once."""
    problems: dict[str, None] = {}
    for row in rows:
        if "model_dir" in row:
            raise UserError("--sweep model_dir: each run has a directory below that of the sweep.")
        changed, found = config_lib.try_overrides(config, [f"{p}={v}" for p, v in row.items()])
        found += config_lib.find_problems(changed)
        if not found:
            found = config_lib.find_refusals(changed)
        problems |= dict.fromkeys(found)
    if problems:
        raise UserError(config_lib.summarize([*problems]))


def _write_plan(folder: AnyPath, config: fdl.Config, runs: dict[str, list[str]]) -> None:
    """Writes `sweep.json`, or checks that the one that is there is that of the same sweep."""
    file = folder / PLAN
    flat = config_lib.as_flat_text(config).splitlines()
    plan: dict[str, Any] = {
        "runs": runs,
        "config": [line for line in flat if not line.startswith("model_dir =")],
    }
    if not file.exists():
        if (folder / "config.json").exists():
            raise UserError(f"{folder} is the directory of a run; set model_dir to another one.")
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(plan, indent=1) + "\n")
        return
    stored = json.loads(file.read_text(encoding="utf-8"))
    if stored["runs"] != runs:
        raise UserError(
            f"{folder} has a sweep with other runs ({len(stored['runs'])}, these are {len(runs)}; "
            f"see {file}). Pass the same --sweep options to continue it, or set model_dir to "
            "another directory."
        )
    if differ := sorted({*stored["config"]} ^ {*plan["config"]}):
        raise UserError(
            f"{folder} has a sweep of another config: {'; '.join(differ[:4])}. Pass the same "
            "settings to continue it, or set model_dir to another directory."
        )


def _is_finished(run_dir: AnyPath) -> bool:
    end = read_end(run_dir)
    return end is not None and end.how == "finished"


def _run(
    arguments: Sequence[str],
    settings: Sequence[str],
    run_dir: AnyPath,
    interrupts: signals.Interrupts,
) -> str:
    """Runs one run in a process of its own; returns its state."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mtf.run", *arguments, "--set", *settings],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # The signals of a terminal come from here, once.
        preexec_fn=_end_with_parent,
    )
    told = 0
    while True:
        try:
            process.wait(timeout=0.1)
            break
        except subprocess.TimeoutExpired:
            if interrupts.number != told:
                told = interrupts.number
                process.send_signal(told)
    if _is_finished(run_dir):
        return "finished"
    return "stopped" if interrupts.number and not process.returncode else "failed"


def _end_with_parent() -> None:
    """Sends this process SIGTERM when its parent dies, so that it saves and ends."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
