"""Metrics of texts agree with values computed by hand or given in documentation."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.evaluation.metrics import METRICS, compute

# Metric → the library that it needs from the extra `eval`.
LIBRARIES = {"bleu": "sacrebleu", "rouge": "rouge_score", "edit_distance": "nltk"}


def scores(name: str, targets: list[Any], predictions: list[Any]) -> dict[str, float]:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name], reason=f"{name} needs the extra `eval`")
    return compute(name, targets, predictions)


EXAMPLES: list[tuple[str, list[Any], list[Any], dict[str, float]]] = [
    ("accuracy", ["yes", "no", "no"], ["yes", "no", "maybe"], {"accuracy": 200 / 3}),
    ("sequence_accuracy", ["a b", "c"], ["a b", "c."], {"sequence_accuracy": 50}),
    # Class 1: one right, one missed (2 is counted as 0), one false (-1 is counted as 1).
    ("f1", [1, 1, 0, 0], [1, 2, -1, 0], {"f1": 50}),
    ("f1", [0, 0], [0, 0], {"f1": 0}),
    # F1 of class 0: 2/3 (precision 1/2), of class 1: 0, of class 2: 2/3.
    ("mean_3class_f1", [0, 1, 1, 2], [0, 0, 2, 2], {"mean_3class_f1": 400 / 9}),
    # A prediction of no class lowers recall only: class 0 2/3, class 1 1, class 2 1.
    ("mean_3class_f1", [0, 0, 1, 2], [0, -1, 1, 2], {"mean_3class_f1": 800 / 9}),
    # TP 6, TN 3, FP 1, FN 2: (18 - 2) / √(7 · 8 · 4 · 5).
    (
        "matthews_corrcoef",
        [1] * 8 + [0] * 4,
        [1] * 6 + [0] * 2 + [0] * 3 + [1],
        {"matthews_corrcoef": 1600 / math.sqrt(1120)},
    ),
    # The example in the documentation of sklearn's roc_auc_score and average_precision_score.
    ("auc", [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], {"auc-roc": 75, "auc-pr": 250 / 3}),
    # Two words of two and three in common: 2 · 2 / (2 + 3).
    ("squad", [["a blue whale", "krill"]], ["The big Blue, whale!"], {"em": 0, "f1": 80}),
    ("squad", ["Whale"], ["the whale."], {"em": 100, "f1": 100}),
    ("squad", [["x", "left-hand"], ["y"]], ["lefthand", "z"], {"em": 50, "f1": 50}),
    ("squad", ["fox ‘animal’"], ["The  fox, an ‘animal’!"], {"em": 100, "f1": 100}),
    # TriviaQA leaves a space where there was punctuation, and takes off quotation marks.
    ("trivia_qa", [["left hand"], ["y"]], ["‘Left-Hand’", "y z"], {"em": 50, "f1": 250 / 3}),
    # Articles and punctuation do not count; the best answer does: (2/3 + 1 + 1) / 3.
    (
        "coqa_f1",
        [["jump the box"], ["up", "on a box"], ["..."]],
        ["Jump.", "on box", ""],
        {"f1": 800 / 9},
    ),
    ("multirc_f1_over_all_answers", [1, 1, 0], [1, 0, 1], {"f1": 50}),
    # n-grams in common: 5 of 6, 3 of 5, 2 of 4, 1 of 3; both of one length.
    (
        "bleu",
        ["the cat sat on a mat"],
        ["the cat sat on the mat"],
        {"bleu": 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25},
    ),
    # Four words for five: brevity penalty. No 4-gram in common: smoothed to 1/2 of one.
    (
        "bleu",
        ["a b c d e"],
        ["a b c x"],
        {"bleu": 100 * math.exp(1 - 5 / 4) * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25},
    ),
    # Case counts, and each prediction may have several references.
    ("bleu", [["A b c d", "a b c d"]], ["a b c d"], {"bleu": 100}),
    # `intl` parts words from punctuation that is not ASCII, which `13a` does not.
    ("bleu", ["« yes » he said"], ["«yes» he said"], {"bleu": 100}),
    # Precision 2/3 and 1/2, recall 1.
    ("rouge", ["The cat"], ["the CAT sat"], {"rouge1": 80, "rouge2": 200 / 3, "rougeLsum": 80}),
    # Sentences in another order: each has its own longest common subsequence.
    (
        "rouge",
        ["one two . three four"],
        ["three four . one two"],
        {"rouge1": 100, "rouge2": 200 / 3, "rougeLsum": 100},
    ),
    ("pearson_corrcoef", ["1", "2", "3"], ["1.0", "3.0", "2.0"], {"pearson_corrcoef": 50}),
    # Ranks 2, 3, 4, 1 of 1, 2, 3, 4: 1 - 6 · 12 / (4 · 15). "none" counts as -1.
    ("spearman_corrcoef", [1, 2, 3, 4], ["10", "100", "1000", "none"], {"spearman_corrcoef": -20}),
    (
        "edit_distance",
        ["the whale eats krill", "yes", "no"],
        ["A whale eats", "yes", "Not at all"],
        {"min_edit": 0, "max_edit": 3, "mean_edit": 5 / 3, "median_edit": 2, "sum_edit": 5},
    ),
]


@pytest.mark.parametrize(("name", "targets", "predictions", "expected"), EXAMPLES)
def test_worked_example(
    name: str, targets: list[Any], predictions: list[Any], expected: dict[str, float]
) -> None:
    found = scores(name, targets, predictions)
    assert found == pytest.approx(expected, abs=1e-9)
    assert METRICS[name].scores == tuple(found)
    assert {type(value) for value in found.values()} == {float}


def test_every_metric_has_an_example() -> None:
    assert {name for name, *_ in EXAMPLES} == {name for name in METRICS if "." not in name}


@pytest.mark.parametrize(
    ("name", "targets", "predictions", "says"),
    [
        ("rogue", ["a"], ["a"], "no metric 'rogue'; expected one of accuracy, .*mean rouge"),
        ("accuracy", ["a"], ["a", "b"], "the same number of targets and predictions, not 1 and 2"),
        ("squad", [], [], "there are no examples; expected at least one"),
    ],
)
def test_bad_input(name: str, targets: list[str], predictions: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        compute(name, targets, predictions)
