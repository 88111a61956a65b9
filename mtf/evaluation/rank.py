"""Rank classification: the most likely answer choice is the prediction.

As in T0 (Sanh et al. 2022, section 5), the log-likelihoods of a choice's tokens, including EOS,
are summed and not divided by their number. Metrics are T5's, in percent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from mtf import strict_json
from mtf.errors import UserError
from mtf.evaluation.metrics import auc, class_f1
from mtf.evaluation.rank_data import RankData, RankTask
from mtf.evaluation.report import TaskResult
from mtf.inference.predictor import NotFiniteError, Predictor
from mtf.progress import progress_bar

# Choices whose scores differ by less may swap ranks with another batch size or other devices, which
# change the order of float32 sums.
CLOSE = 1e-4


@dataclass(frozen=True)
class Ranked:
    """The scores of an example's choices.

    Attributes:
      log_likelihoods: log-likelihood of each choice, summed over its tokens.
      num_tokens: number of tokens of each choice.
      correct: whether each choice is correct. None can be, or several if their texts are equal.
    """

    log_likelihoods: Sequence[float]
    num_tokens: Sequence[int]
    correct: Sequence[bool]

    @property
    def prediction(self) -> int:
        """The choice with the highest log-likelihood, the first one of equals."""
        return int(np.argmax(self.log_likelihoods))

    @property
    def length_normalized_prediction(self) -> int:
        """The choice with the highest log-likelihood per token, the first one of equals."""
        return int(np.argmax(np.divide(self.log_likelihoods, self.num_tokens)))

    @property
    def label(self) -> int | None:
        """The first correct choice, or None."""
        return next((i for i, right in enumerate(self.correct) if right), None)

    @property
    def is_close(self) -> bool:
        """Whether the two highest distinct log-likelihoods differ by less than `CLOSE`."""
        best = np.unique(np.asarray(self.log_likelihoods, np.float64))[-2:]  # sorted
        return len(best) == 2 and bool(best[1] - best[0] < CLOSE)


def rank_metrics(examples: Sequence[Ranked]) -> dict[str, float]:
    """Returns the metrics of a task, in percent; none without examples.

    These are `accuracy`, `length_normalized_accuracy` and `majority` (the share of the most
    frequent label). If all examples have two choices, also `f1` (of class 1), `auc_roc` and
    `auc_pr` (by the difference of the log-likelihoods); if all have another number of choices,
    `mean_f1` over these classes.
    """
    if not examples:
        return {}
    predictions = [e.prediction for e in examples]
    normalized = [e.length_normalized_prediction for e in examples]
    labels = [-1 if e.label is None else e.label for e in examples]
    label_counts = Counter(label for label in labels if label >= 0)
    metrics = {
        "accuracy": _percent_right(examples, predictions),
        "length_normalized_accuracy": _percent_right(examples, normalized),
        "majority": 100 * max(label_counts.values(), default=0) / len(examples),
    }
    numbers = {len(e.correct) for e in examples}
    if len(numbers) > 1 or min(numbers) < 2:
        return metrics
    f1 = class_f1(labels, predictions, num_classes := numbers.pop())
    if num_classes > 2:
        return metrics | {"mean_f1": 100 * float(np.mean(f1))}
    margins = [e.log_likelihoods[1] - e.log_likelihoods[0] for e in examples]
    roc, pr = map(float, auc(labels, margins))
    return metrics | {"f1": 100 * f1[1], "auc_roc": roc, "auc_pr": pr}


def _percent_right(examples: Sequence[Ranked], predictions: Sequence[int]) -> float:
    right = [e.correct[p] for e, p in zip(examples, predictions, strict=True)]
    return 100 * float(np.mean(right))


def evaluate_tasks(
    tasks: Sequence[RankTask], predictor: Predictor, predictions: TextIO | None = None
) -> list[TaskResult]:
    """Evaluates tasks one after another, with the examples of one task in memory at a time.

    Writes lines to `predictions` and prints the accuracy of each task; if `predictions` is None,
    as for all processes but the first, neither writes nor prints. Raises UserError if a score is
    not a number.
    """
    results = []
    present = [task for task in tasks if task.load is not None]
    width = max(len(task.name) for task in present)
    for task in tasks:
        if task.load is None:
            results.append(TaskResult(task.name, task.dataset, task.prompt, absent=task.absent))
            continue
        place = f"{present.index(task) + 1}/{len(present)}"
        bar = None if predictions is None else f"{place} {task.name}"
        result, lines = _evaluate_task(task, task.load(), predictor, bar)
        results.append(result)
        if predictions is not None:
            predictions.writelines(strict_json.dumps(x, ensure_ascii=False) + "\n" for x in lines)
            accuracy = f"{result.metrics['accuracy']:6.2f}" if result.metrics else "     –"
            count = f"({result.num_examples:,})"
            print(f"{place:>7}  {task.name:<{width}}  {accuracy}  {count}", flush=True)
    return results


def _evaluate_task(
    task: RankTask, data: RankData, predictor: Predictor, bar: str | None
) -> tuple[TaskResult, Iterator[dict[str, Any]]]:
    """Returns the result of a task, and the lines of its predictions."""
    examples, truncated_before = data.examples, predictor.num_truncated
    with progress_bar(bar or "", len(examples), shown=bar is not None) as advance:
        try:
            pairs = ((e.inputs, e.choices) for e in examples)
            scores = list(predictor.log_likelihoods(pairs, on_progress=advance))
        except NotFiniteError as error:
            number = examples[error.example].id
            raise UserError(f"task {task.name}, row {number} of its data: {error}") from error
    ranked = [
        Ranked(s.log_likelihoods.tolist(), s.num_tokens.tolist(), e.correct)
        for s, e in zip(scores, examples, strict=True)
    ]
    result = TaskResult(
        *(task.name, task.dataset, task.prompt),
        rank_metrics(ranked),
        num_examples=len(ranked),
        num_left_out=data.num_left_out,
        num_truncated=predictor.num_truncated - truncated_before,
        num_close=sum(r.is_close for r in ranked),
        num_unanswerable=sum(r.label is None for r in ranked),
        failed=data.failed,
    )
    lines = (
        {
            "task": task.name,
            "id": e.id,
            "log_likelihoods": r.log_likelihoods,
            "num_tokens": r.num_tokens,
            "correct": r.correct,
            "prediction": r.prediction,
            "length_normalized_prediction": r.length_normalized_prediction,
            "truncated": s.truncated,
        }
        for e, r, s in zip(examples, ranked, scores, strict=True)
    )
    return result, lines
