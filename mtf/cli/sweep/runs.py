"""Runs a recipe once for each combination of values of its settings (`mtf.run --sweep`)."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import fiddle as fdl

from mtf import config as config_lib
from mtf.base import signals
from mtf.base.errors import UserError, did_you_mean
from mtf.base.run_end import read_end
from mtf.base.strict_json import read_lines
from mtf.checkpoints.settings import METRIC_KINDS
from mtf.cli.sweep.study import TABLE, Study
from mtf.cli.sweep.values import grid, parse_values
from mtf.evaluation.metrics import METRICS
from mtf.evaluation.metrics import find as find_metric
from mtf.storage import as_path


def run_sweep(
    config: fdl.Config, name: str, options: argparse.Namespace, arguments: Sequence[str]
) -> int:
    """Runs a sweep; returns the exit status, which is 1 if any run failed, otherwise 0.

    `config.model_dir` is the directory of the sweep. `arguments` are the arguments of `mtf.run`
    that all runs share. Raises UserError if any value is invalid.
    """
    search, given = options.sweep_mode, options.sweep_runs
    is_grid = search == "grid"
    if is_grid != (given is None) or (given is not None and given < 1):
        expected = "no --sweep-runs" if is_grid else "--sweep-runs N with N at least 1"
        raise UserError(f"--sweep-mode {search}: expected {expected}.")
    values = parse_values(options.sweep)
    for path, each in values.items():
        if is_grid and not hasattr(each, "choices"):
            raise UserError(f"--sweep {path}: an interval needs --sweep-mode random or optuna.")
    rows = grid(values)
    _check(config, rows)
    number = given or len(rows)
    metric, mode = _metric(config, options.sweep_metric)
    if options.sweep_metric:
        _check_metric(config, metric)
    if options.dry_run:
        shown = [" ".join(_settings(row)) for row in rows] if is_grid else options.sweep
        print(f"{number} runs ({search}), sorted by {metric} ({mode})", *shown, sep="\n")
        return 0
    folder = as_path(config.model_dir or config_lib.new_run_dir(f"{name}-sweep"))
    if not isinstance(folder, Path):
        raise UserError(f"model_dir: {folder} is remote, but a sweep needs a local directory.")
    lines = config_lib.as_flat_text(config).splitlines()
    lines = [line for line in lines if not line.startswith("model_dir =")]
    study = Study(folder, values, search, metric, mode, lines)
    failed = False
    with signals.Interrupts() as interrupts:
        interrupts.hold()
        for trial, row in study.trials(number):
            run_dir, settings = folder / f"{trial:03}", _settings(row)
            print(f"run {trial:03} of {number}: {' '.join(settings)}", flush=True)
            command = [*arguments, "--set", *settings, f"model_dir={run_dir}"]
            if finished := _run(command, run_dir, interrupts):
                score = _score(run_dir, metric, mode)
                study.tell(trial, score)
                if score is None:
                    print(f"run {trial:03} has no {metric}, so it counts as failed", flush=True)
                    finished = False
            if interrupts.number:
                break
            failed |= not finished
    study.write_results()
    results = study.results()
    widths = [max(map(len, column)) for column in zip(*results, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in results]
    print(*lines, f"results in {folder / TABLE}", sep="\n")
    if interrupts.number:
        again = shlex.join([*arguments, "--set", f"model_dir={folder}"])
        print(f"{interrupts.requested}: to resume, add the same --sweep: python -m mtf.run {again}")
    return int(failed)


def _settings(row: Mapping[str, str]) -> list[str]:
    return [f"{path}={value}" for path, value in row.items()]


def _metric(config: fdl.Config, asked: str | None) -> tuple[str, Literal["min", "max"]]:
    """Returns the metric that ranks runs (`asked`, the monitored one or the loss), and its mode."""
    save = getattr(getattr(config, "checkpoint", None), "save", None)
    monitored = getattr(save, "metric_name_to_monitor", None)
    metric = asked or monitored or "train/loss_per_target_token"
    if metric == monitored and (mode := getattr(save, "metric_mode", None)):
        return metric, mode
    evaluated = getattr(getattr(config, "evaluator", None), "metrics", None) or ()
    texts = (*METRICS.values(), *map(find_metric, evaluated))
    scores = (score for each in texts if each.best == "min" for score in each.scores)
    minimized = "loss", "perplexity", *scores
    return metric, "min" if any(word in metric for word in minimized) else "max"


def _check_metric(config: fdl.Config, metric: str) -> None:
    """Raises UserError if no run measures a metric with this name."""
    from mtf.training.metrics import SUMMARY_METRICS  # Imports JAX.

    train, training_eval, inference_eval = METRIC_KINDS
    kind, _, name = metric.partition("/")
    evaluated = getattr(config.evaluator, "metrics", None) or ()
    scores = {s for each in (*METRICS.values(), *map(find_metric, evaluated)) for s in each.scores}
    names = {train: {*SUMMARY_METRICS}, training_eval: {*SUMMARY_METRICS}, inference_eval: scores}
    if kind != train:
        name = name.partition("/")[2]  # without the name of the evaluation
    if name in names.get(kind, ()) or (name and config.model.loss_fn and kind in names):
        return
    known = [f"{train}/{each}" for each in SUMMARY_METRICS]
    known += [f"{training_eval}/held_out/{each}" for each in SUMMARY_METRICS]
    raise UserError(
        f"--sweep-metric: no run measures {metric}; expected {train}/NAME, "
        f"{training_eval}/DATA/NAME or {inference_eval}/TASK/NAME.{did_you_mean(metric, known)}"
    )


def _score(run_dir: Path, metric: str, mode: Literal["min", "max"]) -> float | None:
    """Returns a run's best (for training metrics, last) value of a metric; None if it has none."""
    is_training = metric.startswith("train/")
    parts = metric.split("/", 1 if is_training else 2)
    file = run_dir.joinpath(*parts[:-1], "metrics.jsonl")
    found = [line.get(parts[-1]) for line in read_lines(file)] if file.exists() else []
    values = [float(value) for value in found if value is not None and math.isfinite(value)]
    if is_training or not values:
        return values[-1] if values else None
    return min(values) if mode == "min" else max(values)


def _check(config: fdl.Config, rows: Sequence[dict[str, str]]) -> None:
    """Raises UserError if any run has invalid settings; the message lists all problems."""
    problems: dict[str, None] = {}
    for row in rows:
        if "model_dir" in row:
            raise UserError("--sweep model_dir: leave it out; each run has a directory of its own.")
        try:
            config_lib.build(config_lib.apply_overrides(config, _settings(row)))
        except UserError as error:
            problems[str(error)] = None
    if problems:
        raise UserError(config_lib.summarize([*problems]))


def _is_finished(run_dir: Path) -> bool:
    end = read_end(run_dir)
    return end is not None and end.how == "finished"


def _run(arguments: Sequence[str], run_dir: Path, interrupts: signals.Interrupts) -> bool:
    """Runs `mtf.run` in a new process unless the run is finished; returns whether it finished."""
    if _is_finished(run_dir):
        return True
    process = subprocess.Popen(
        [sys.executable, "-m", "mtf.run", *arguments],
        stdin=subprocess.DEVNULL,
        env={**os.environ, signals.LAUNCHER: str(os.getpid())},
        start_new_session=True,  # The run gets signals only from this process.
    )
    forwarded = 0
    while process.poll() is None:
        time.sleep(0.1)
        if interrupts.number != forwarded:
            forwarded = interrupts.number
            process.send_signal(forwarded)
    return _is_finished(run_dir)
