"""How much the engines may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mtf.inference.decoding.generate import Generated
from tests.golden.cases import Case

# Of evaluations after all steps, and of parameters: differences of 50 steps add up.
_TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}
# T5X's score of an empty place for a hypothesis is -1e7.
_NO_HYPOTHESIS = -1e6

# With AVERAGE_PER_SEQUENCE, T5X takes the weights' sum for the number of tokens (docs/t5x.md).
_OF_WEIGHTS = ("loss_per_nonpadding_target_token", "non_padding_fraction/loss_weights")


def assert_losses(case: Case, ours: Sequence[float], theirs: Sequence[float]) -> None:
    """Asserts that the losses of all steps agree."""
    assert len(ours) == len(theirs)
    np.testing.assert_allclose(case.ratio * np.array(ours), theirs, rtol=case.tolerance)


def assert_metrics(case: Case, ours: Mapping[str, float], theirs: Mapping[str, float]) -> None:
    """Asserts that T5X's metrics of held-out batches agree."""
    tolerance = _TOLERANCES[case.network["dtype"]]
    per_sequence = case.model.get("loss_normalizing_factor") == "AVERAGE_PER_SEQUENCE"
    for name, value in theirs.items():
        if per_sequence and name in _OF_WEIGHTS:
            continue
        # T5X names the sides of rows that are not packed after their features.
        side = name.replace("decoder_target_tokens", "decoder")
        found = ours[side.replace("encoder_input_tokens", "encoder")]
        # In bfloat16, the prediction of a token may differ.
        absolute = tolerance if name == "accuracy" else 0.0
        np.testing.assert_allclose(found, value, rtol=tolerance, atol=absolute, err_msg=name)


def assert_state(
    case: Case, ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]
) -> None:
    """Asserts that the figures of each tensor (see `recorded.summary`) agree.

    With AdamW, those of the parameters: in T5X, optax names the optimizer's state.
    """
    if case.adamw is not None:
        ours, theirs = _params(ours), _params(theirs)
    assert ours.keys() == theirs.keys()
    for name, figures in theirs.items():
        tolerance = _TOLERANCES[case.network["dtype"]]
        # Second moments have the scale of squared gradients.
        is_param = name.startswith("target/")
        if not is_param and case.network["dtype"] == "bfloat16":
            tolerance *= 5
        if is_param or case.ratio == 1.0:
            np.testing.assert_allclose(
                ours[name], figures, rtol=tolerance, atol=tolerance * figures[0], err_msg=name
            )


def _params(figures: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    return {name: each for name, each in figures.items() if name.startswith("target/")}


def assert_decoded(ours: Generated, tokens: np.ndarray, scores: np.ndarray) -> None:
    """Asserts that T5X's hypotheses are ours, with their scores.

    Where fewer hypotheses have ended than asked for, T5X has empty ones and mtf unfinished ones.
    """
    found = scores > _NO_HYPOTHESIS
    assert found[:, 0].all()
    np.testing.assert_array_equal(np.asarray(ours.tokens)[found], tokens[found])
    np.testing.assert_allclose(np.asarray(ours.scores)[found], scores[found], rtol=1e-5)


def largest_difference(case: Case, ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns the largest relative difference of a step's loss."""
    return float(np.max(np.abs(case.ratio * np.array(ours) / np.array(theirs) - 1.0)))
