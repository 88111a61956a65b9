"""The results of a sweep: a table and a plot, sorted by a metric."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mtf.storage import AnyPath
from mtf.writing import write_atomically

TABLE, PLOT = "results.csv", "results.png"


@dataclasses.dataclass(frozen=True)
class Result:
    """A run of a sweep.

    Attributes:
      name: name of its directory below that of the sweep.
      values: path → value, as text, of the swept settings.
      state: "finished", "failed", "stopped" or "to do".
      score: the value of the metric; None if it was not measured.
    """

    name: str
    values: Mapping[str, str]
    state: str
    score: float | None


def score_of(run_dir: AnyPath, metric: str, mode: Literal["min", "max"]) -> float | None:
    """Returns a run's best value of a metric; of a metric in training, its last value."""
    from mtf.training.metrics import read_metrics

    parts = metric.split("/")
    depth = 1 if parts[0] == "train" else 2
    file = run_dir / "/".join(parts[:depth]) / "metrics.jsonl"
    lines = read_metrics(file) if file.exists() else []
    found = [line.get("/".join(parts[depth:])) for line in lines]
    values = [value for value in found if value is not None and math.isfinite(value)]
    if not values:
        return None
    if parts[0] == "train":
        return float(values[-1])
    return float(min(values) if mode == "min" else max(values))


def ranked(results: Sequence[Result], mode: Literal["min", "max"]) -> list[Result]:
    """Returns the results, the best first, and those without a score at the end."""
    sign = 1.0 if mode == "min" else -1.0
    return sorted(results, key=lambda r: (r.score is None, sign * (r.score or 0.0), r.name))


def as_text(results: Sequence[Result], metric: str) -> str:
    """Returns the table for a terminal."""
    rows = [_header(results, metric)]
    rows += [
        (r.name, *r.values.values(), "-" if r.score is None else f"{r.score:.5g}", r.state)
        for r in results
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "".join(f"{line}\n" for line in lines)


def _header(results: Sequence[Result], metric: str) -> tuple[str, ...]:
    return ("run", *results[0].values, metric, "state")


def write(folder: AnyPath, results: Sequence[Result], metric: str) -> None:
    """Writes the table and the plot."""
    write_table(folder, results, metric)
    write_plot(folder, results, metric)


def write_table(folder: AnyPath, results: Sequence[Result], metric: str) -> None:
    """Writes the table as `results.csv`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_header(results, metric))
    for r in results:
        score = "" if r.score is None else repr(r.score)
        writer.writerow([r.name, *r.values.values(), score, r.state])
    write_atomically(folder / TABLE, text.getvalue())


def write_plot(folder: AnyPath, results: Sequence[Result], metric: str) -> None:
    """Plots the metric over each swept setting to `results.png`, if a run has a score."""
    from matplotlib.figure import Figure

    from mtf.writing import write_figure

    scored = [r for r in results if r.score is not None]
    if not scored:
        return
    paths = list(scored[0].values)
    figure = Figure(figsize=(4 * len(paths), 3.5), layout="constrained")
    for axes, path in zip(figure.subplots(1, len(paths), squeeze=False)[0], paths, strict=True):
        positions: list[Any] = [_number(r.values[path]) for r in scored]
        if None in positions:
            positions = [r.values[path] for r in scored]
        elif min(positions) > 0 and max(positions) >= 20 * min(positions):
            axes.set_xscale("log")
        axes.plot(positions, [r.score for r in scored], "o")
        axes.set_xlabel(path)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel(metric)
    write_figure(figure, folder / PLOT)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
