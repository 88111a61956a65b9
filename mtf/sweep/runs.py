"""Runs a recipe with several values of its settings, one run after another.

Each run has a directory of its own, `SWEEP_DIR/000` and so on. The same command continues a sweep:
finished runs are left out, and the others resume.
"""

from __future__ import annotations

import ctypes
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import fiddle as fdl

from mtf import config as config_lib
from mtf import signals
from mtf.config.paths import split_assignment
from mtf.errors import UserError
from mtf.extras import import_extra
from mtf.run_end import read_end
from mtf.storage import AnyPath, as_path
from mtf.sweep import results
from mtf.sweep.plan import write_plan
from mtf.sweep.study import Study
from mtf.sweep.values import Mode, check_number, combinations, each_value, parse_axes

Order = Literal["min", "max"]

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux' prctl


class Sweep(NamedTuple):
    """A sweep as the command line describes it.

    Attributes:
      axes: texts `PATH=V1,V2,…`.
      mode: how values are combined, see `combinations`; or "optuna", see `Study`.
      number: number of runs, for the modes "random" and "optuna".
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
    axes = parse_axes(sweep.axes)
    metric, order = _metric(config, sweep.metric)
    searches = sweep.mode == "optuna"
    check_number(sweep.mode, sweep.number)
    rows = each_value(axes) if searches else combinations(axes, sweep.mode, sweep.number)
    _check(config, rows)
    if searches:
        import_extra("optuna", "--sweep-mode optuna", "optuna")
    if dry_run:
        _describe(sweep, rows, f"{metric} ({order})")
        return 0
    folder = as_path(config.model_dir or config_lib.new_run_dir(f"{name}-sweep"))
    runs: _Runs
    if searches:
        runs = _Searched(config, sweep, folder, metric, order)
    else:
        runs = _Listed(config, rows, folder, metric, order)
    if runs.num_done:
        print(f"{folder}: {runs.num_done} of {runs.number} runs are done", flush=True)
    with signals.Interrupts() as interrupts:
        interrupts.hold()
        for own, row in runs.todo():
            settings = _settings(row)
            which = f"run {int(own) + 1} of {runs.number} ({own})"
            print(f"{which}: {' '.join(settings)}", flush=True)
            run_dir = folder / own
            settings.append(f"model_dir={run_dir}")
            runs.ended(own, _run(sweep.arguments, settings, run_dir, interrupts))
            if interrupts.number:
                break
    found = runs.results()
    print(results.as_text(found, metric), end="")
    print(f"table          {folder / results.TABLE}\nplot           {folder / results.PLOT}")
    if interrupts.number:
        command = shlex.join([*sweep.arguments, "--set", f"model_dir={folder}"])
        print(
            f"{interrupts.requested}: continue with the same --sweep: python -m mtf.run {command}"
        )
    return 1 if any(result.state == "failed" for result in found) else 0


class _Runs(Protocol):
    """The runs of a sweep.

    Attributes:
      number: how many there are.
      num_done: how many were done before this process.
    """

    number: int
    num_done: int

    def todo(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yields name and path → value of the runs to do."""

    def ended(self, own: str, state: str) -> None:
        """Notes how a run has ended, and writes the table and the plot."""

    def results(self) -> list[results.Result]:
        """Returns the runs, the best first."""


class _Listed(_Runs):
    """Runs whose values are known before the first."""

    def __init__(
        self,
        config: fdl.Config,
        rows: Sequence[Mapping[str, str]],
        folder: AnyPath,
        metric: str,
        order: Order,
    ) -> None:
        self._rows = {f"{i:03}": row for i, row in enumerate(rows)}
        self._folder, self._metric, self._order = folder, metric, order
        write_plan(folder, config, {"runs": {o: _settings(row) for o, row in self._rows.items()}})
        self._states = {
            own: "finished" if _is_finished(folder / own) else "to do" for own in self._rows
        }
        self.number, self.num_done = len(rows), [*self._states.values()].count("finished")

    def todo(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        for own, row in self._rows.items():
            if self._states[own] == "to do":
                yield own, row

    def ended(self, own: str, state: str) -> None:
        self._states[own] = state
        results.write(self._folder, self.results(), self._metric)

    def results(self) -> list[results.Result]:
        every = [
            results.Result(
                own,
                row,
                self._states[own],
                results.score_of(self._folder / own, self._metric, self._order),
            )
            for own, row in self._rows.items()
        ]
        return results.ranked(every, self._order)


class _Searched(_Runs):
    """Runs whose values Optuna chooses."""

    def __init__(
        self, config: fdl.Config, sweep: Sweep, folder: AnyPath, metric: str, order: Order
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        values = dict(map(split_assignment, sweep.axes))
        self._study = Study(config, values, str(folder), mode=order, metric=metric)
        self._folder, self._metric, self._order = folder, metric, order
        assert sweep.number is not None
        self.number, self.num_done = sweep.number, self._study.num_told

    def todo(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        for trial in self._study.trials(self.number):
            self._trial = trial
            yield trial.name, trial.values

    def ended(self, own: str, state: str) -> None:
        if state == "stopped":  # The trial goes on when the sweep does.
            return
        score = results.score_of(self._folder / own, self._metric, self._order)
        if state == "finished" and score is None:
            print(f"run {own} has no {self._metric}, so it counts as failed", flush=True)
        self._study.tell(self._trial, score if state == "finished" else None)

    def results(self) -> list[results.Result]:
        return self._study.results()


def _settings(row: Mapping[str, str]) -> list[str]:
    return [f"{path}={value}" for path, value in row.items()]


def _describe(sweep: Sweep, rows: Sequence[Mapping[str, str]], metric: str) -> None:
    """Prints the runs, or what Optuna chooses from."""
    if sweep.mode == "optuna":
        print(f"{sweep.number} runs, for which Optuna chooses values by {metric}")
        print(*sweep.axes, sep="\n")
        return
    print(f"{len(rows)} runs, sorted by {metric}")
    for i, row in enumerate(rows):
        print(f"{i:03}  {' '.join(_settings(row))}")


def _metric(config: fdl.Config, asked: str | None) -> tuple[str, Order]:
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


def _is_finished(run_dir: AnyPath) -> bool:
    end = read_end(run_dir)
    return end is not None and end.how == "finished"


def _run(
    arguments: Sequence[str],
    settings: Sequence[str],
    run_dir: AnyPath,
    interrupts: signals.Interrupts,
) -> str:
    """Runs one run in a process of its own, if it is not finished; returns its state."""
    if _is_finished(run_dir):
        return "finished"
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
