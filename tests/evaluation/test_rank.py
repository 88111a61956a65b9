"""Metrics of ranked choices agree with values computed by hand."""

from __future__ import annotations

import math

import pytest

from mtf.evaluation.rank import Ranked, rank_metrics


def ranked(scores: list[float], label: int | None, lengths: list[int] | None = None) -> Ranked:
    correct = [i == label for i in range(len(scores))]
    return Ranked(scores, lengths or [1] * len(scores), correct)


# Margins of class 1: -1, 2, 1, -2, labels 0, 1, 0, 1: two right, one of the two positives found.
TWO_CLASSES = [
    ranked([-1.0, -2.0], 0),
    ranked([-3.0, -1.0], 1),
    ranked([-2.0, -1.0], 0),
    ranked([-1.0, -3.0], 1),
]


def test_two_classes() -> None:
    found = rank_metrics(TWO_CLASSES)
    assert found["accuracy"] == 50.0
    assert found["majority"] == 50.0
    assert found["f1"] == 50.0  # precision 1/2, recall 1/2
    # Of the four pairs of a positive and a negative, 2 > 1 and 2 > -1 are in order.
    assert found["auc_roc"] == 50.0
    # Points (recall, precision): (0, 1), (1/2, 1), (1/2, 1/2), (1/2, 1/3), (1, 1/2).
    assert found["auc_pr"] == pytest.approx(100 * (0.5 + 0.5 * 1 / 2))


def test_three_classes_have_a_mean_f1() -> None:
    examples = [
        ranked([0.0, -1.0, -2.0], 0),
        ranked([-1.0, 0.0, -2.0], 0),
        ranked([-1.0, 0.0, -2.0], 1),
        ranked([-2.0, -1.0, 0.0], 2),
    ]
    found = rank_metrics(examples)
    assert found["accuracy"] == 75.0
    # Class 0: precision 1, recall 1/2; class 1: precision 1/2, recall 1; class 2: both 1.
    assert found["mean_f1"] == pytest.approx(100 * (2 / 3 + 2 / 3 + 1) / 3)
    assert "f1" not in found and "auc_roc" not in found


def test_likelihoods_are_not_divided_by_length_but_beside() -> None:
    # Summed, the short choice wins; per token, -2 < -6/4.
    examples = [ranked([-2.0, -6.0], 1, [1, 4])]
    found = rank_metrics(examples)
    assert (found["accuracy"], found["length_normalized_accuracy"]) == (0.0, 100.0)


def test_unequal_numbers_of_choices_have_an_accuracy_only() -> None:
    found = rank_metrics([ranked([-1.0, -2.0], 0), ranked([-1.0, -2.0, 0.0], 1), ranked([-9.0], 0)])
    assert found["accuracy"] == pytest.approx(200 / 3)
    assert set(found) == {"accuracy", "length_normalized_accuracy", "majority"}


def test_of_equal_scores_the_first_is_the_prediction() -> None:
    assert ranked([-2.0, -1.0, -1.0], 2).prediction == 1
    assert not ranked([-2.0, -1.0, -1.0], 2).is_close  # equal to the bit: decided the same always
    assert ranked([-2.0, -1.0, -1.00001], 2).is_close


def test_an_example_without_a_right_choice_is_wrong() -> None:
    examples = [ranked([-1.0, -2.0], None), ranked([-1.0, -2.0], 0)]
    assert examples[0].label is None
    assert rank_metrics(examples)["accuracy"] == 50.0


def test_one_class_alone_has_no_area() -> None:
    only = [ranked([-1.0, -2.0], 0), ranked([-2.0, -1.0], 0)]
    found = rank_metrics(only)
    assert found["f1"] == 0.0
    assert math.isnan(found["auc_roc"]) and math.isnan(found["auc_pr"])


def test_ties_count_half_in_the_area_under_the_curve() -> None:
    margins, labels = (1.0, 1.0, 2.0, 0.0), (1, 0, 1, 0)
    examples = [ranked([0.0, m], label) for m, label in zip(margins, labels, strict=True)]
    found = rank_metrics(examples)
    assert found["auc_roc"] == pytest.approx(100 * 3.5 / 4)
    # Precision 1 for the first half of the recall, 2/3 for the second: the tie is one point.
    assert found["auc_pr"] == pytest.approx(100 * (0.5 + 0.5 * 2 / 3))
