"""Rank classification: the answer choice with the greatest likelihood is the prediction.

As T0 (Sanh et al. 2022, section 5): the log-likelihoods of a choice's tokens, end of sequence
included, are summed and not divided by their number; metrics are T5's. All are percentages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mtf.errors import UserError

# Two best choices that are nearer to each other may change places with the batch size or the
# devices, as float32 sums are made in another order there.
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
        best = np.sort(np.unique(np.asarray(self.log_likelihoods, np.float64)))[-2:]
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
    predictions = np.array([e.prediction for e in examples])
    normalized = [e.length_normalized_prediction for e in examples]
    # Where no choice is right, no prediction is.
    labels = np.array([-1 if e.label is None else e.label for e in examples])
    right = [e.correct[p] for e, p in zip(examples, predictions, strict=True)]
    right_normalized = [e.correct[p] for e, p in zip(examples, normalized, strict=True)]
    most_frequent = Counter(labels[labels >= 0].tolist()).most_common(1)
    metrics = {
        "accuracy": 100 * float(np.mean(right)),
        "length_normalized_accuracy": 100 * float(np.mean(right_normalized)),
        "majority": 100 * (most_frequent[0][1] if most_frequent else 0) / len(examples),
    }
    numbers = {len(e.correct) for e in examples}
    if len(numbers) > 1 or min(numbers) < 2:
        return metrics
    num_classes = numbers.pop()
    if num_classes > 2:
        scores = [f1(labels == c, predictions == c) for c in range(num_classes)]
        return metrics | {"mean_f1": 100 * float(np.mean(scores))}
    margins = np.array([e.log_likelihoods[1] - e.log_likelihoods[0] for e in examples])
    return metrics | {
        "f1": 100 * f1(labels == 1, predictions == 1),
        "auc_roc": 100 * auc_roc(labels == 1, margins),
        "auc_pr": 100 * auc_pr(labels == 1, margins),
    }


def f1(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Twice the true positives, divided by predicted and real positives; 0 where none are."""
    total = np.sum(targets) + np.sum(predictions)
    return float(2 * np.sum(targets & predictions) / total) if total else 0.0


def auc_roc(targets: np.ndarray, scores: np.ndarray) -> float:
    """Returns how often a positive's score is above a negative's, equal ones counted half.

    NaN where there are no positives or no negatives.
    """
    positives, negatives = scores[targets], np.sort(scores[~targets])
    if not len(positives) or not len(negatives):
        return float("nan")
    below = np.searchsorted(negatives, positives, side="left")
    not_above = np.searchsorted(negatives, positives, side="right")
    return float(np.mean(below + not_above) / 2 / len(negatives))


def auc_pr(targets: np.ndarray, scores: np.ndarray) -> float:
    """Average precision: the precision at every different score, weighted by the recall gained.

    As T5 has it (t5/evaluation/metrics.py: `rank_classification`). NaN without positives.
    """
    if not np.any(targets):
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    last_of_equal = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    true_positives = np.cumsum(targets[order])[last_of_equal]
    precision = true_positives / (last_of_equal + 1)
    recall = np.append(0.0, true_positives / np.sum(targets))
    return float(np.sum(np.diff(recall) * precision))
