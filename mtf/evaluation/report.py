"""Writes the results of an evaluation as tables, JSON and figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import jax
import numpy as np

from mtf.base import strict_json
from mtf.base.environment import write_environment
from mtf.base.writing import new_figure, write_atomically, write_figure
from mtf.storage import AnyPath, as_path, remove_tree
from mtf.training.metrics import MetricsWriter

Kind = Literal["rank", "generate"]

RESULTS, TABLE = "results.json", "results.md"
FIGURE = "accuracy.png"
# The file for predictions of ranked tasks, and the folder for predictions of generated tasks.
PREDICTIONS, TEXT_PREDICTIONS = "predictions.jsonl", "predictions"
TENSORBOARD = "tensorboard"
# Names of the means that `_overall` returns.
MEAN_ACCURACY, MEAN_SCORE = "mean_accuracy", "mean_score"
_NORMALIZED = "length_normalized_accuracy"
# Metric → heading of its column; the columns are in this order.
_HEADINGS = {
    "accuracy": "accuracy",
    "length_normalized_accuracy": "length-norm.",
    "f1": "F1",
    "mean_f1": "mean F1",
    "auc_roc": "AUC-ROC",
    "auc_pr": "AUC-PR",
    "majority": "majority",
}
# The metrics that a ranked task can have.
RANK_METRICS = tuple(_HEADINGS)


@dataclass(frozen=True)
class TaskResult:
    """The result of a task. A task applies a prompt to a dataset.

    Attributes:
      task: name of the task.
      dataset, prompt: see `EvaluationTask`.
      metrics: dict mapping metric names to values; computed by `rank_metrics` for ranked tasks and
        with `mtf.evaluation.metrics` for generated tasks; empty if there are no examples.
      kind: "rank" if answer choices were ranked, "generate" if targets were generated.
      num_examples: number of evaluated examples.
      num_left_out: number of rows to which the prompt does not apply.
      num_truncated: number of examples with truncated inputs or choices.
      num_close: number of examples whose two best choices are almost equally likely; see
        `Ranked.is_close`.
      num_unanswerable: number of examples that have no correct choice and therefore count as wrong.
      failed: dict mapping the number of each unusable row to the reason.
      absent: the reason why the task has no data; None if it has data.
    """

    task: str
    dataset: str
    prompt: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    kind: Kind = "rank"
    num_examples: int = 0
    num_left_out: int = 0
    num_truncated: int = 0
    num_close: int = 0
    num_unanswerable: int = 0
    failed: Mapping[int, str] = field(default_factory=dict)
    absent: str | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TaskResult:
        """Creates a result from a dict made by `dataclasses.asdict` and read back from JSON."""
        metrics = {k: math.nan if v is None else v for k, v in values["metrics"].items()}
        failed = {int(row): reason for row, reason in values["failed"].items()}
        return cls(**{**values, "metrics": metrics, "failed": failed})

    @property
    def first_metric(self) -> str | None:
        """The name of the metric that is averaged over tasks, or None if there are no metrics."""
        return next(iter(self.metrics), None)

    @property
    def is_complete(self) -> bool:
        """Whether the task has examples and no row failed. Only complete tasks are averaged."""
        return bool(self.metrics) and not self.failed

    @property
    def problem(self) -> str | None:
        """The reason why a task with data is excluded from averages; None if it is included."""
        if self.failed:
            row, reason = next(iter(self.failed.items()))
            return f"{len(self.failed)} examples failed; the first is row {row}: {reason}"
        return None if self.metrics else "the prompt does not apply to any row"


def _groups(results: Sequence[TaskResult]) -> list[tuple[str, Kind, list[TaskResult]]]:
    """Returns (dataset, kind, its results) for each dataset; those of ranked tasks come first."""
    groups: dict[tuple[Kind, str], list[TaskResult]] = {}
    for result in sorted(results, key=lambda result: result.kind != "rank"):
        groups.setdefault((result.kind, result.dataset), []).append(result)
    return [(dataset, kind, tasks) for (kind, dataset), tasks in groups.items()]


def _statistics(tasks: Sequence[TaskResult], metric: str = "accuracy") -> dict[str, float]:
    """Returns statistics of a metric over complete tasks, or {} if no task has a finite value."""
    all_values = [task.metrics.get(metric, math.nan) for task in tasks if task.is_complete]
    values = list(filter(math.isfinite, all_values))
    if not values:
        return {}
    percentiles = {"median": 50, "min": 0, "max": 100, "quartile_1": 25, "quartile_3": 75}
    numbers = np.percentile(values, [*percentiles.values()]).tolist()
    found = dict(zip(percentiles, numbers, strict=True))
    iqr = found["quartile_3"] - found["quartile_1"]
    return {"mean": float(np.mean(values)), **found, "iqr": iqr}


def _overall(results: Sequence[TaskResult]) -> dict[str, Any]:
    """Returns the means over ranked and over generated tasks, and the numbers of tasks.

    `mean_accuracy` averages accuracies over the ranked prompts of each dataset, and then over
    datasets. `mean_score` averages the first metric of each generated task.
    """
    found: dict[str, Any] = {}
    if ranked := [tasks for _, kind, tasks in _groups(results) if kind == "rank"]:
        means = [of["mean"] for tasks in ranked if (of := _statistics(tasks))]
        complete = [task.is_complete for tasks in ranked for task in tasks]
        found |= {
            MEAN_ACCURACY: float(np.mean(means)) if means else None,
            "num_datasets": len(means),
            "num_datasets_expected": len(ranked),
            "num_prompts": sum(complete),
            "num_prompts_expected": len(complete),
        }
    if generated := [task for task in results if task.kind == "generate"]:
        first = [task.metrics[str(task.first_metric)] for task in generated if task.is_complete]
        scores = list(filter(math.isfinite, first))
        found |= {
            MEAN_SCORE: float(np.mean(scores)) if scores else None,
            "num_generated_tasks": len(scores),
            "num_generated_tasks_expected": len(generated),
        }
    return found


def write(folder: AnyPath, results: Sequence[TaskResult], about: Mapping[str, Any]) -> None:
    """Writes all files of an evaluation except the predictions and the TensorBoard events.

    `about` must contain `data`, `checkpoint` and `step`. Because `results.json` is written last, a
    folder that contains `results.json` is complete.
    """
    title = f"{about['data']}: {as_path(about['checkpoint']).name}"
    (folder / TABLE).write_text(_as_markdown(results, title), encoding="utf-8")
    if ranked := [(name, tasks) for name, kind, tasks in _groups(results) if kind == "rank"]:
        _plot(ranked, folder / FIGURE, title)
    write_environment(folder, [str(device) for device in jax.devices()])
    content = strict_json.dumps(_as_json(results, about), indent=1, ensure_ascii=False)
    write_atomically(folder / RESULTS, content + "\n")


def read(folder: AnyPath) -> tuple[dict[str, Any], list[TaskResult]]:
    """Returns `about` and the results, both read from the `results.json` that `write` wrote."""
    values = strict_json.read_own(folder / RESULTS, f"Delete {folder} to evaluate again.")
    tasks = values["tasks"].items()
    return values, [TaskResult.from_json({"task": name, **value}) for name, value in tasks]


def write_events(folder: AnyPath, results: Mapping[int, Sequence[TaskResult]]) -> None:
    """Deletes earlier TensorBoard events, and writes the results of each step as new events."""
    remove_tree(folder / TENSORBOARD)
    with MetricsWriter(folder, TENSORBOARD, min(results)) as writer:
        for step in sorted(results):
            values = {f"eval/{name}": value for name, value in scalars(results[step]).items()}
            writer.write(step, values)


def _as_json(results: Sequence[TaskResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of `results.json`."""
    numbers: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for dataset, kind, tasks in _groups(results):
        names = ("accuracy", _NORMALIZED) if kind == "rank" else _metric_names(tasks)
        statistics = {name: _statistics(tasks, name) or None for name in names}
        if kind == "rank":
            complete = sum(task.is_complete for task in tasks)
            counts = {"num_prompts": complete, "num_prompts_expected": len(tasks)}
            numbers[dataset] = {**counts, **statistics}
        else:
            texts[dataset] = statistics
    return {
        **about,
        "overall": _overall(results),
        "datasets": numbers,
        **({"generated": texts} if texts else {}),
        "tasks": {values.pop("task"): values for values in map(asdict, results)},
    }


def _metric_names(tasks: Sequence[TaskResult]) -> list[str]:
    """Returns the names of the tasks' metrics, in the order in which they first occur."""
    return list(dict.fromkeys(name for task in tasks for name in task.metrics))


def scalars(results: Sequence[TaskResult]) -> dict[str, float]:
    """Returns a dict of all means, statistics and metrics that are not NaN.

    The keys are `mean_accuracy` and `mean_score` (see `_overall`), `datasets/DATASET/METRIC_mean`,
    `datasets/DATASET/METRIC_median` and so on, and, as in T5X, `TASK/METRIC`. In TensorBoard, the
    names begin with `eval/`.
    """
    means = _overall(results)
    names = (MEAN_ACCURACY, MEAN_SCORE)
    found = {name: means[name] for name in names if means.get(name) is not None}
    for dataset, kind, tasks in _groups(results):
        for metric in ["accuracy"] if kind == "rank" else _metric_names(tasks):
            prefix = f"datasets/{dataset.replace(' ', '_')}/{metric}"
            found |= {f"{prefix}_{name}": x for name, x in _statistics(tasks, metric).items()}
    found |= {f"{r.task}/{name}": v for r in results for name, v in r.metrics.items()}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def _tables(results: Sequence[TaskResult]) -> list[list[list[str]]]:
    """Returns a summary table of ranked tasks and one of generated tasks, without empty tables."""
    headings = ["prompts", "mean", "median", "min–max", "IQR"]
    ranked = [["dataset", *headings, "length-norm. mean"]]
    generated = [["dataset", "metric", *headings]]
    for dataset, kind, tasks in _groups(results):
        if kind == "rank":
            found = _statistics(tasks, _NORMALIZED)
            normalized = f"{found['mean']:.2f}" if found else "–"
            ranked.append([dataset, *_summary_cells(tasks, "accuracy"), normalized])
            continue
        for metric in _metric_names(tasks) or ["–"]:
            of_metric = [task for task in tasks if metric in task.metrics] or tasks
            generated.append([dataset, metric, *_summary_cells(of_metric, metric)])
    return [rows for rows in (ranked, generated) if len(rows) > 1]


def _summary_cells(tasks: Sequence[TaskResult], metric: str) -> list[str]:
    found, values = _statistics(tasks, metric), ["–"] * 4
    if found:
        values = "{mean:.2f} {median:.2f} {min:.2f}–{max:.2f} {iqr:.2f}".format(**found).split()
    return [_num_complete(tasks), *values]


def _num_complete(tasks: Sequence[TaskResult]) -> str:
    return f"{sum(task.is_complete for task in tasks)} of {len(tasks)}"


def summary(results: Sequence[TaskResult], output_dir: AnyPath) -> str:
    """Returns the summary that is printed on the terminal."""
    lines = [text for table in _tables(results) for text in ("", as_text(table))]
    lines += _overall_lines(results)
    lines += [f"note: {note}" for note in _notes(results)]
    kinds = {result.kind for result in results}
    others = [RESULTS, *([PREDICTIONS, FIGURE] if "rank" in kinds else [])]
    others += [f"{TEXT_PREDICTIONS}/"] if "generate" in kinds else []
    return "\n".join([*lines, f"results        {output_dir}/{TABLE} (and {', '.join(others)})"])


def _overall_lines(results: Sequence[TaskResult]) -> list[str]:
    """Returns the lines with the means over ranked datasets and over generated tasks."""
    total, lines = _overall(results), []
    if total.get(MEAN_ACCURACY) is not None:
        lines.append(
            f"Mean over {total['num_datasets']} of {total['num_datasets_expected']} datasets "
            f"({total['num_prompts']} of {total['num_prompts_expected']} prompts): "
            f"{total[MEAN_ACCURACY]:.2f}"
        )
    if total.get(MEAN_SCORE) is not None:
        lines.append(
            f"Mean of the first metric over {total['num_generated_tasks']} of "
            f"{total['num_generated_tasks_expected']} generated tasks: {total[MEAN_SCORE]:.2f}"
        )
    return lines or ["No prompt has a complete result."]


def _notes(results: Sequence[TaskResult]) -> list[str]:
    """Returns notes on missing data, failures, truncation and close scores."""
    num_prompts = Counter(r.dataset for r in results)
    absent = Counter((r.dataset, r.absent) for r in results if r.absent is not None)
    found = [
        f"{dataset}: {n} of {num_prompts[dataset]} prompts have no data: {reason}"
        for (dataset, reason), n in absent.items()
    ]
    found += [
        f"{r.task}: not included in the mean: {r.problem}"
        for r in results
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


def _as_markdown(results: Sequence[TaskResult], title: str) -> str:
    """Returns a Markdown page with the summary, the notes, and a table for each dataset."""
    parts = [f"# {title}\n", "Accuracies and scores are percentages.\n"]
    parts += map(_markdown, _tables(results))
    parts += [f"{line}\n" for line in _overall_lines(results)]
    if found := _notes(results):
        parts += ["## Notes\n", "".join(f"* {' '.join(note.split())}\n" for note in found)]
    has_ranked = any(result.kind == "rank" for result in results)
    for dataset, kind, tasks in _groups(results):
        suffix = ", generated" if kind == "generate" and has_ranked else ""
        if any(r.metrics for r in tasks):
            parts += [f"## {dataset}{suffix}\n", _markdown(_prompt_table(tasks))]
    return "\n".join(parts)


def _prompt_table(tasks: Sequence[TaskResult]) -> list[list[str]]:
    headings = {name: name for name in _metric_names(tasks)}
    if tasks[0].kind == "rank":
        headings = {name: text for name, text in _HEADINGS.items() if name in headings}
    rows = [["prompt", "examples", *headings.values()]]
    for r in tasks:
        values = [f"{r.metrics[n]:.2f}" if n in r.metrics else "–" for n in headings]
        mark = "" if r.is_complete else " (not in the mean)"
        rows.append([r.prompt + mark, f"{r.num_examples:,}", *values])
    return rows


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"

    rule = ["---"] + ["---:"] * (len(rows[0]) - 1)
    return "".join(map(line, [rows[0], rule, *rows[1:]]))


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """Formats a table for the terminal; all columns except the first are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def _plot(datasets: Sequence[tuple[str, Sequence[TaskResult]]], file: AnyPath, title: str) -> None:
    """Draws a box plot of accuracies for each dataset, as in figure 4 of T0's paper.

    Each point is a ranked task. Tasks that are excluded from averages are drawn as hollow points
    and do not affect the box. The dotted line shows the majority baseline.
    """
    num_columns = min(len(datasets), 4)
    num_rows = -(-len(datasets) // num_columns)
    figure = new_figure(2.6 * num_columns, 2.6 * num_rows + 0.4)
    figure.suptitle(title)
    grid = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axes, (name, tasks) in zip(grid, datasets, strict=False):
        drawn = [r for r in tasks if r.metrics]
        counted = [r.metrics["accuracy"] for r in drawn if r.is_complete]
        others = [r.metrics["accuracy"] for r in drawn if not r.is_complete]
        axes.set_title(f"{name}\n{_num_complete(tasks)} prompts", fontsize=9)
        axes.set(xlim=(0.5, 1.5), ylim=(0, 100))
        axes.grid(axis="y", alpha=0.3)
        if not drawn:
            axes.text(1, 50, "no data", ha="center", va="center", color="gray")
        if counted:
            axes.boxplot(counted, positions=[1], widths=0.4, showfliers=False)
        style = {"s": 16, "edgecolors": "tab:blue", "zorder": 3, "clip_on": False}
        for values, face in ((counted, "tab:blue"), (others, "none")):
            spread = 0.12 * (len(values) > 1)
            places = 1 + np.linspace(-spread, spread, len(values))
            axes.scatter(places, values, facecolors=face, **style)
        axes.set_xticks([])
        for r in [r for r in drawn if r.is_complete][:1]:
            axes.axhline(r.metrics["majority"], color="gray", linestyle=":", lw=1)
    for axes in grid[len(datasets) :]:
        axes.set_axis_off()
    grid[0].set_ylabel("accuracy (%)")
    write_figure(figure, file)
