"""Writes the results of rank evaluation as tables, JSON and a figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mtf import strict_json
from mtf.environment import write_environment
from mtf.training.metrics import MetricsWriter

RESULTS, TABLE, FIGURE = "results.json", "results.md", "accuracy.png"
PREDICTIONS = "predictions.jsonl"
_NORMALIZED = "length_normalized_accuracy"
# Metric → heading of its column, in the order of the columns.
_HEADINGS = {
    "accuracy": "accuracy",
    "length_normalized_accuracy": "length-norm.",
    "f1": "F1",
    "mean_f1": "mean F1",
    "auc_roc": "AUC-ROC",
    "auc_pr": "AUC-PR",
    "majority": "majority",
}


@dataclass(frozen=True)
class TaskResult:
    """The result of a task: a prompt over a dataset.

    Attributes:
      task: name of the task.
      dataset, prompt: see `RankTask`.
      metrics: `rank_metrics`, in percent; empty without examples.
      num_examples: number of examples ranked.
      num_left_out: number of rows to which the prompt does not apply.
      num_truncated: number of examples with truncated inputs or choices.
      num_close: number of examples whose best two choices are almost equally likely (`rank.CLOSE`).
      num_unanswerable: number of examples without a correct choice; they count as wrong.
      failed: row number → reason, for rows that could not be used.
      absent: reason that there is no data, if there is none.
    """

    task: str
    dataset: str
    prompt: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    num_examples: int = 0
    num_left_out: int = 0
    num_truncated: int = 0
    num_close: int = 0
    num_unanswerable: int = 0
    failed: Mapping[int, str] = field(default_factory=dict)
    absent: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it has examples and none failed, so it counts in means over prompts."""
        return bool(self.metrics) and not self.failed

    @property
    def problem(self) -> str | None:
        """The reason that it does not count in means, or None if it does."""
        if self.absent is not None:
            return f"no data: {self.absent}"
        if self.failed:
            row, reason = next(iter(self.failed.items()))
            return f"{len(self.failed)} examples failed; the first is row {row}: {reason}"
        return None if self.metrics else "the prompt does not apply to any row"


def by_dataset(results: Sequence[TaskResult]) -> dict[str, list[TaskResult]]:
    """Returns the results grouped by dataset, in the order of first tasks."""
    groups: dict[str, list[TaskResult]] = {}
    for result in results:
        groups.setdefault(result.dataset, []).append(result)
    return groups


def statistics(tasks: Sequence[TaskResult], metric: str = "accuracy") -> dict[str, float]:
    """Returns statistics of a metric over complete tasks; empty if there is none."""
    values = [task.metrics[metric] for task in tasks if task.is_complete]
    if not values:
        return {}
    names = ("median", "min", "max", "quartile_1", "quartile_3")
    percentiles = np.percentile(values, (50, 0, 100, 25, 75)).tolist()
    found = dict(zip(names, percentiles, strict=True))
    iqr = found["quartile_3"] - found["quartile_1"]
    return {"mean": float(np.mean(values)), **found, "iqr": iqr}


def overall(results: Sequence[TaskResult]) -> dict[str, Any]:
    """Returns the mean over datasets of their mean accuracies, and the numbers that it covers."""
    datasets = by_dataset(results)
    means = [found["mean"] for tasks in datasets.values() if (found := statistics(tasks))]
    return {
        "mean_accuracy": float(np.mean(means)) if means else None,
        "num_datasets": len(means),
        "num_datasets_expected": len(datasets),
        "num_prompts": sum(task.is_complete for task in results),
        "num_prompts_expected": len(results),
    }


def write(folder: Path, results: Sequence[TaskResult], about: Mapping[str, Any]) -> None:
    """Writes all files except the predictions; `about` has "data", "checkpoint" and "step"."""
    content = strict_json.dumps(_as_json(results, about), indent=1, ensure_ascii=False)
    (folder / RESULTS).write_text(content + "\n", encoding="utf-8")
    title = f"{about['data']}: {Path(about['checkpoint']).name}"
    (folder / TABLE).write_text(as_markdown(results, title), encoding="utf-8")
    plot(results, folder / FIGURE, title)
    step = about["step"] or 0
    with MetricsWriter(folder / "tensorboard", step) as writer:
        writer.write(step, scalars(results))
    write_environment(folder, [str(device) for device in jax.devices()])


def _as_json(results: Sequence[TaskResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of `results.json`."""
    return {
        **about,
        "overall": overall(results),
        "datasets": {
            name: {
                "num_prompts": sum(task.is_complete for task in tasks),
                "num_prompts_expected": len(tasks),
                "accuracy": statistics(tasks) or None,
                "length_normalized_accuracy": statistics(tasks, _NORMALIZED) or None,
            }
            for name, tasks in by_dataset(results).items()
        },
        "tasks": {values.pop("task"): values for values in map(asdict, results)},
    }


def scalars(results: Sequence[TaskResult]) -> dict[str, float]:
    """Returns TensorBoard's values: `eval/TASK/METRIC` as in T5X, and `eval/datasets/…`."""
    found = {f"eval/{r.task}/{name}": v for r in results for name, v in r.metrics.items()}
    for dataset, tasks in by_dataset(results).items():
        for name, value in statistics(tasks).items():
            found[f"eval/datasets/{dataset.replace(' ', '_')}/accuracy_{name}"] = value
    return {name: value for name, value in found.items() if not math.isnan(value)}


def summary_table(results: Sequence[TaskResult]) -> list[list[str]]:
    """Returns the headings, and a row for each dataset."""
    rows = [["dataset", "prompts", "mean", "median", "min–max", "IQR", "length-norm. mean"]]
    for dataset, tasks in by_dataset(results).items():
        values = ["–"] * 5
        if found := statistics(tasks):
            normalized = statistics(tasks, _NORMALIZED)["mean"]
            form = "{mean:.2f} {median:.2f} {min:.2f}–{max:.2f} {iqr:.2f} {normalized:.2f}"
            values = form.format(**found, normalized=normalized).split()
        rows.append([dataset, _num_complete(tasks), *values])
    return rows


def _num_complete(tasks: Sequence[TaskResult]) -> str:
    return f"{sum(task.is_complete for task in tasks)} of {len(tasks)}"


def summary(results: Sequence[TaskResult], output_dir: Path) -> str:
    """Returns the summary for the terminal."""
    lines = ["", as_text(summary_table(results)), overall_line(results)]
    lines += [f"note: {note}" for note in notes(results)]
    files = f"{output_dir}/{TABLE} (and {RESULTS}, {PREDICTIONS}, {FIGURE})"
    return "\n".join([*lines, f"results        {files}"])


def overall_line(results: Sequence[TaskResult]) -> str:
    """Returns the line with the mean over datasets."""
    total = overall(results)
    if total["mean_accuracy"] is None:
        return "No prompt has a complete result."
    return (
        f"Mean over {total['num_datasets']} of {total['num_datasets_expected']} datasets "
        f"({total['num_prompts']} of {total['num_prompts_expected']} prompts): "
        f"{total['mean_accuracy']:.2f}"
    )


def notes(results: Sequence[TaskResult]) -> list[str]:
    """Returns notes on missing data, truncation and close scores."""
    found: list[str] = []
    for dataset, tasks in by_dataset(results).items():
        absent = Counter(r.absent for r in tasks if r.absent is not None)
        found += [
            f"{dataset}: {n} of {len(tasks)} prompts have no data: {reason}"
            for reason, n in absent.items()
        ]
        found += [
            f"{r.task}: not included in the mean: {r.problem}"
            for r in tasks
            if r.absent is None and r.problem is not None
        ]
    for attribute, text in (
        ("num_truncated", "inputs or choices were truncated"),
        ("num_unanswerable", "no choice is correct (counted as wrong)"),
        ("num_close", "the best two choices are almost equally likely"),
    ):
        found += [
            f"{r.task}: {getattr(r, attribute)} of {r.num_examples} examples: {text}"
            for r in results
            if getattr(r, attribute)
        ]
    return found


def as_markdown(results: Sequence[TaskResult], title: str) -> str:
    """Returns the page with summary, notes, and a table of each dataset's prompts."""
    parts = [f"# {title}\n", "Accuracies are percentages.\n", _markdown(summary_table(results))]
    parts.append(overall_line(results) + "\n")
    if found := notes(results):
        parts += ["## Notes\n", "".join(f"* {' '.join(note.split())}\n" for note in found)]
    for dataset, tasks in by_dataset(results).items():
        if any(r.metrics for r in tasks):
            parts += [f"## {dataset}\n", _markdown(_prompt_table(tasks))]
    return "\n".join(parts)


def _prompt_table(tasks: Sequence[TaskResult]) -> list[list[str]]:
    names = [name for name in _HEADINGS if any(name in r.metrics for r in tasks)]
    rows = [["prompt", "examples", *(_HEADINGS[name] for name in names)]]
    for r in tasks:
        values = [f"{r.metrics[n]:.2f}" if n in r.metrics else "–" for n in names]
        mark = "" if r.is_complete else " (not in the mean)"
        rows.append([r.prompt + mark, f"{r.num_examples:,}", *values])
    return rows


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"

    rule = ["---"] + ["---:"] * (len(rows[0]) - 1)
    return "".join(map(line, [rows[0], rule, *rows[1:]]))


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table for the terminal; all columns but the first are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def plot(results: Sequence[TaskResult], file: Path, title: str) -> None:
    """Draws a box plot of accuracy for each dataset; points are prompts (as in T0's figure 4).

    Prompts that do not count in means are hollow and not in the box.
    """
    from matplotlib.figure import Figure

    datasets = by_dataset(results)
    num_columns = min(len(datasets), 4)
    num_rows = -(-len(datasets) // num_columns)
    figure = Figure(figsize=(2.6 * num_columns, 2.6 * num_rows + 0.4), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axes, (dataset, tasks) in zip(grid, datasets.items(), strict=False):
        axes.set_title(f"{dataset}\n{_num_complete(tasks)} prompts", fontsize=9)
        axes.set(xlim=(0.5, 1.5), ylim=(0, 100))
        axes.grid(axis="y", alpha=0.3)
        counted = [r.metrics["accuracy"] for r in tasks if r.is_complete]
        others = [r.metrics["accuracy"] for r in tasks if r.metrics and not r.is_complete]
        if not counted and not others:
            axes.text(1, 50, "no data", ha="center", va="center", color="gray")
        if counted:
            axes.boxplot(counted, positions=[1], widths=0.4, showfliers=False)
        style = {"s": 16, "edgecolors": "tab:blue", "zorder": 3, "clip_on": False}
        for values, face in ((counted, "tab:blue"), (others, "none")):
            spread = 0.12 * (len(values) > 1)
            places = 1 + np.linspace(-spread, spread, len(values))
            axes.scatter(places, values, facecolors=face, **style)
        axes.set_xticks([])
        if counted:
            majority = next(r.metrics["majority"] for r in tasks if r.is_complete)
            axes.axhline(majority, color="gray", linestyle=":", lw=1)
    for axes in grid[len(datasets) :]:
        axes.set_axis_off()
    grid[0].set_ylabel("accuracy (%)")
    figure.savefig(file, dpi=120)
