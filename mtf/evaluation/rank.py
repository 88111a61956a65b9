"""Rank classification: the answer choice with the greatest likelihood is the prediction.

As T0 (Sanh et al. 2022, section 5): the log-likelihoods of a choice's tokens, end of sequence
included, are summed and not divided by their number; metrics are T5's. All are percentages.
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

# Scores that differ by less may change places with the batch size or the devices, which change the
# order of float32 sums.
CLOSE = 1e-4


@dataclass(frozen=True)
class Ranked:
    """One example with the likelihoods of its choices.

    Attributes:
      log_likelihoods: of each choice, summed over its tokens.
      num_tokens: of each choice.
      correct: whether a choice is right; none may be, and several where they are the same text.
    """

    log_likelihoods: Sequence[float]
    num_tokens: Sequence[int]
    correct: Sequence[bool]

    @property
    def prediction(self) -> int:
        """The choice with the greatest log-likelihood; of equal ones the first."""
        return int(np.argmax(self.log_likelihoods))

    @property
    def length_normalized_prediction(self) -> int:
        """The choice with the greatest log-likelihood a token; of equal ones the first."""
        return int(np.argmax(np.divide(self.log_likelihoods, self.num_tokens)))

    @property
    def label(self) -> int | None:
        """The first choice that is right, None if none is."""
        return next((i for i, right in enumerate(self.correct) if right), None)

    @property
    def is_close(self) -> bool:
        """Whether the best two different likelihoods differ by less than `CLOSE`."""
        best = np.unique(np.asarray(self.log_likelihoods, np.float64))[-2:]  # in order
        return len(best) == 2 and bool(best[1] - best[0] < CLOSE)


def rank_metrics(examples: Sequence[Ranked]) -> dict[str, float]:
    """Returns the metrics of a task, in percent.

    Returns:
      `accuracy`, `length_normalized_accuracy` and `majority` (how often the most frequent label is
      right). Where every example has two choices, also `f1` (of class 1), `auc_roc` and `auc_pr`
      (classes ordered by the difference of the two log-likelihoods); where all have another
      number N of them, `mean_f1` over the N classes.

    Raises:
      UserError: there is no example.
    """
    if not examples:
        raise UserError("there is no example to compute metrics of")
    predictions = [e.prediction for e in examples]
    # Where no choice is right, no prediction is.
    labels = [-1 if e.label is None else e.label for e in examples]
    most_frequent = Counter(label for label in labels if label >= 0).most_common(1)
    metrics = {
        "accuracy": _percent_right(examples, predictions),
        "length_normalized_accuracy": _percent_right(
            examples, [e.length_normalized_prediction for e in examples]
        ),
        "majority": 100 * (most_frequent[0][1] if most_frequent else 0) / len(examples),
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
    """Evaluates task by task; only one task's examples are in memory at a time.

    `predictions` gets the lines of `predictions.jsonl`; with None, for all processes but one,
    nothing is written or printed.

    Raises:
      UserError: a score is not a number; says of which example.
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
    """Scores and ranks the examples of one task; returns lines for them too."""
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
        task.name,
        task.dataset,
        task.prompt,
        rank_metrics(ranked) if ranked else {},
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
