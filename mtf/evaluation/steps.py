"""Writes the results of a run's checkpoints as a table and a plot, and finds the best step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mtf.base import strict_json
from mtf.base.errors import UserError, did_you_mean
from mtf.base.writing import new_figure, write_atomically, write_figure
from mtf.evaluation import report
from mtf.evaluation.report import TaskResult
from mtf.evaluation.tasks import EvaluationTask
from mtf.storage import AnyPath

STEPS, TABLE, FIGURE = "steps.json", "steps.tsv", "steps.png"
# Maximum number of metrics in the table on the terminal, and of curves in the plot.
_MAX_SHOWN = 6
_MAX_CURVES = 10


@dataclass(frozen=True)
class Steps:
    """The results of a run's checkpoints, and the metric that determines the best checkpoint.

    Attributes:
      results: dict mapping each step to the results of its tasks.
      checkpoints: dict mapping each step to the path of its checkpoint.
      metric: name of the metric; `report.scalars` describes the names.
      mode: "max" if the largest value is the best, "min" if the smallest value is the best.
    """

    results: Mapping[int, Sequence[TaskResult]]
    checkpoints: Mapping[int, AnyPath]
    metric: str
    mode: Literal["max", "min"]

    @property
    def table(self) -> dict[int, dict[str, float]]:
        """A dict mapping each step, in ascending order, to a dict from metric names to values."""
        found = {step: report.scalars(self.results[step]) for step in sorted(self.results)}
        return {step: dict(filter(_is_column, row.items())) for step, row in found.items()}

    @property
    def best(self) -> int | None:
        """The first step with the best value of the metric, or None if no step has a value."""
        values = {step: row[self.metric] for step, row in self.table.items() if self.metric in row}
        choose = max if self.mode == "max" else min
        return choose(values, key=values.__getitem__) if values else None

    def write(self, folder: AnyPath) -> None:
        """Writes `steps.json`, `steps.tsv`, `steps.png` and TensorBoard events."""
        table, best = self.table, self.best
        content = {
            "metric_name_to_monitor": self.metric,
            "metric_mode": self.mode,
            "best_step": best,
            "best_checkpoint": None if best is None else str(self.checkpoints[best]),
            "steps": table,
        }
        names = self._names()
        rows = [["step", *names]]
        rows += [[str(step), *(str(row.get(n, "")) for n in names)] for step, row in table.items()]
        write_atomically(folder / TABLE, "".join("\t".join(row) + "\n" for row in rows))
        self._plot(folder / FIGURE)
        report.write_events(folder, self.results)
        write_atomically(folder / STEPS, strict_json.dumps(content, indent=1) + "\n")

    def summary(self, folder: AnyPath) -> str:
        """Returns the table and the best step for the terminal."""
        names, table, best = self._names(), self.table, self.best
        shown = self._main_names()[:_MAX_SHOWN]
        rows = [["step", *shown]]
        for step, row in table.items():
            values = [f"{row[name]:.2f}" if name in row else "–" for name in shown]
            rows.append([f"{step}{' *' if step == best else ''}", *values])
        lines = ["", report.as_text(rows)]
        if best is None:
            lines.append(f"No checkpoint has a value for {self.metric}.")
        else:
            value = f"{self.metric} {table[best][self.metric]:.2f}"
            lines.append(f"best step      {best} ({value}, {self.mode}): {self.checkpoints[best]}")
        lines.append(f"results        {folder}/{TABLE} ({len(names)} metrics), {STEPS}, {FIGURE}")
        return "\n".join(lines)

    def _names(self) -> list[str]:
        """Returns the names of the table's columns."""
        return list(dict.fromkeys(name for row in self.table.values() for name in row))

    def _main_names(self) -> list[str]:
        """Returns the name of the monitored metric, followed by the names of the means.

        The means are those over tasks and over the prompts of each dataset. If there is only one
        task, the names of its metrics are returned instead of the means.
        """
        names, tasks = self._names(), {r.task for results in self.results.values() for r in results}
        if len(tasks) == 1:
            others = [name for name in names if name.startswith(f"{next(iter(tasks))}/")]
        else:
            others = [name for name in names if name in (report.MEAN_ACCURACY, report.MEAN_SCORE)]
            others += [n for n in names if n.startswith("datasets/") and n.endswith("_mean")]
        return list(dict.fromkeys([self.metric, *others]))

    def _plot(self, file: AnyPath) -> None:
        """Plots the monitored metric and the means against the step, and marks the best step."""
        table, best = self.table, self.best
        figure = new_figure(7, 4)
        axes = figure.add_subplot()
        names = self._main_names()[:_MAX_CURVES]
        for name in names:
            steps = [step for step, row in table.items() if name in row]
            width = 2.5 if name == self.metric else 1.0
            values = [table[step][name] for step in steps]
            axes.plot(steps, values, "o-", label=name, markersize=4, linewidth=width)
        if best is not None:
            axes.axvline(best, color="gray", linestyle=":", label=f"best step: {best}")
        axes.set(xlabel="step", ylabel="accuracy or score (%)")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
        write_figure(figure, file)


def _is_column(item: tuple[str, float]) -> bool:
    """Returns whether a value is shown in the table, which omits ranges and IQRs."""
    name, _ = item
    return not name.startswith("datasets/") or name.endswith(("_mean", "_median"))


def monitored_metric(name: str | None, tasks: Sequence[EvaluationTask]) -> str:
    """Returns `name` or, if it is None, "mean_accuracy" if any task is ranked, else "mean_score".

    Raises UserError if the evaluation of `tasks` does not compute this metric.
    """
    is_ranked = any(task.kind == "rank" for task in tasks)
    name = name or (report.MEAN_ACCURACY if is_ranked else report.MEAN_SCORE)
    found = []
    for task in tasks:
        scores = task.scores if task.kind == "generate" else report.RANK_METRICS
        metrics = dict.fromkeys(scores if task.load else (), 0.0)
        found.append(TaskResult(task.name, task.dataset, task.prompt, metrics, task.kind))
    names = dict(filter(_is_column, report.scalars(found).items()))
    if name not in names:
        raise UserError(
            f"metric_name_to_monitor: this evaluation does not measure {name}; expected, for "
            f"example, {next(iter(names))}.{did_you_mean(name, names)}"
        )
    return name
