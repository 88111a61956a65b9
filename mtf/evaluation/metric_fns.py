"""Metric functions for SeqIO's tasks, with the metrics that `recipes.evaluate` reports.

SeqIO's evaluator calls a function of `targets` and `predictions` with texts, and a function of
`targets` and `scores` with log-likelihoods. Nothing here imports SeqIO.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from mtf.evaluation.infer_eval import compare, metrics_of_task
from mtf.evaluation.rank import Ranked, rank_metrics
from mtf.seqio import own
from mtf.tasks.task import Task

MetricFn = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]
# A choice of a ranked task: idx (example, choice), is_correct, weight, number of tokens.
Choice = tuple[tuple[int, int], bool, float, int]


@dataclasses.dataclass(frozen=True)
class _Compared:
    metrics: tuple[str, ...]
    postprocess: Callable[[str], str | int]
    scorer: own.Scorer | None = None


def metric_fns(task: Task) -> list[MetricFn]:
    """Returns the metric functions of a task; none if it consists of documents."""
    if task.kind == "documents":
        return []
    if task.kind == "rank":
        return [rank_classification]
    compared = _Compared(*metrics_of_task(task.name, tuple(task.metrics), lambda: task))

    def generated_text(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
        return compare(compared, targets, predictions)

    return [generated_text]


def rank_classification(targets: Sequence[Choice], scores: Sequence[float]) -> dict[str, float]:
    """Returns `rank_metrics` of the log-likelihoods of all choices, in any order."""
    examples: dict[int, list[tuple[Choice, float]]] = {}
    for target, score in zip(targets, scores, strict=True):
        examples.setdefault(int(target[0][0]), []).append((target, float(score)))
    ranked = []
    for choices in examples.values():
        choices.sort(key=lambda choice: int(choice[0][0][1]))
        found, log_likelihoods = zip(*choices, strict=True)
        num_tokens, correct = [int(each[3]) for each in found], [bool(each[1]) for each in found]
        ranked.append(Ranked(log_likelihoods, num_tokens, correct))
    return rank_metrics(ranked)
