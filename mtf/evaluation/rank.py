"""Evaluates rank classification, in which the most likely answer choice is the prediction.

As in T0 (Sanh et al. 2022, section 5), the score of a choice is the sum of the log-likelihoods of
its tokens, including EOS, without length normalization. The metrics are those of T5, in percent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mtf.base.errors import UserError
from mtf.base.processes.heartbeat import PREDICTING, WRITING, Heartbeat
from mtf.base.progress import progress_bar
from mtf.data.tasks.metrics import auc, class_f1
from mtf.evaluation.report import TaskResult
from mtf.evaluation.task_data import RankData, RankExample
from mtf.evaluation.tasks import EvaluationTask
from mtf.inference.files import Results
from mtf.inference.predictor import NOT_FINITE, NotFiniteError, Predictor, Scores
from mtf.partitioning.processes import from_first_process, is_first_process

# Choices whose scores differ by less than this may swap ranks if the batch size or the devices
# change, because float32 numbers are then summed in another order.
CLOSE = 1e-4


@dataclass(frozen=True)
class Ranked:
    """The scores of the answer choices of an example.

    Attributes:
      log_likelihoods: log-likelihood of each choice, summed over its tokens.
      num_tokens: number of tokens of each choice.
      correct: whether each choice is correct; several choices with the same text can be correct.
    """

    log_likelihoods: Sequence[float]
    num_tokens: Sequence[int]
    correct: Sequence[bool]

    @property
    def prediction(self) -> int:
        """The index of the choice with the highest log-likelihood, or the first one in a tie."""
        return int(np.argmax(self.log_likelihoods))

    @property
    def length_normalized_prediction(self) -> int:
        """The index of the choice with the highest log-likelihood per token."""
        return int(np.argmax(np.divide(self.log_likelihoods, self.num_tokens)))

    @property
    def label(self) -> int | None:
        """The index of the first correct choice, or None if no choice is correct."""
        return next((i for i, right in enumerate(self.correct) if right), None)

    @property
    def is_close(self) -> bool:
        """Whether the two highest distinct log-likelihoods differ by less than `CLOSE`."""
        best = np.unique(np.asarray(self.log_likelihoods, np.float64))[-2:]  # sorted
        return len(best) == 2 and bool(best[1] - best[0] < CLOSE)


def rank_metrics(examples: Sequence[Ranked]) -> dict[str, float]:
    """Returns the metrics of a task, in percent, or an empty dict if there are no examples.

    The metrics are `accuracy`, `length_normalized_accuracy` and `majority` (the share of the most
    frequent label). If all examples have two choices, the dict also contains `f1` (of class 1),
    `auc_roc` and `auc_pr` (both for the difference between the log-likelihoods). If all examples
    have the same number of choices and this number is greater than two, the dict also contains
    `mean_f1`, the mean F1 over the classes.
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


def evaluate_rank_task(
    task: EvaluationTask,
    data: RankData,
    predictor: Predictor,
    results: Results,
    title: str,
    heartbeat: Heartbeat,
) -> TaskResult | None:
    """Scores the choices of a task's examples and writes the scores, unless `results` is complete.

    Returns the result in the first process and None in all other processes. The progress bar shows
    `title`. Raises UserError if a score is NaN or infinite.
    """
    if not from_first_process(results.done):
        examples = data.examples
        with progress_bar(title, len(examples), shown=is_first_process()) as show:

            def advance(number: int) -> None:
                heartbeat.beat(PREDICTING)
                show(number)

            heartbeat.beat(PREDICTING)
            try:
                pairs = ((e.inputs, e.choices) for e in examples)
                scores = list(predictor.log_likelihoods(pairs, on_progress=advance))
            except NotFiniteError as error:
                number = examples[error.example].id
                raise UserError(
                    f"task {task.name}, row {number} of its data: a log-likelihood is NaN or "
                    f"infinite. {NOT_FINITE}"
                ) from error
        if is_first_process():
            heartbeat.beat(WRITING)
            lines = (_line(task, e, s) for e, s in zip(examples, scores, strict=True))
            results.write_part(lines, sum(each.truncated for each in scores))
            results.finish()
    if not is_first_process():
        return None
    fields = ("log_likelihoods", "num_tokens", "correct")
    ranked = [Ranked(*(line[name] for name in fields)) for line in results.read()]
    return TaskResult(
        *(task.name, task.dataset, task.prompt),
        rank_metrics(ranked),
        num_examples=len(ranked),
        num_left_out=data.num_left_out,
        num_truncated=results.num_truncated,
        num_close=sum(r.is_close for r in ranked),
        num_unanswerable=sum(r.label is None for r in ranked),
        failed=data.failed,
    )


def _line(task: EvaluationTask, example: RankExample, scores: Scores) -> dict[str, Any]:
    """Returns the content of an example's line in the predictions file."""
    log_likelihoods, num_tokens = scores.log_likelihoods.tolist(), scores.num_tokens.tolist()
    ranked = Ranked(log_likelihoods, num_tokens, example.correct)
    return {
        "task": task.name,
        "id": example.id,
        "log_likelihoods": log_likelihoods,
        "num_tokens": num_tokens,
        "correct": example.correct,
        "prediction": ranked.prediction,
        "length_normalized_prediction": ranked.length_normalized_prediction,
        "truncated": scores.truncated,
    }
