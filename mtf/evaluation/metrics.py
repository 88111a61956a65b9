"""Finds metrics by name and computes them; `mtf.data.tasks.metrics` defines those of mtf."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from numbers import Real
from typing import Any

from mtf.base.errors import UserError, did_you_mean
from mtf.base.extras import import_extra
from mtf.data.tasks.metrics import METRICS as METRICS
from mtf.data.tasks.metrics import Metric, Scores


def compute(name: str, targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Computes the metric `name`; returns a dict mapping the names of its scores to their values.

    Values are percentages, except for edit distances, which are numbers of words, and the values of
    custom metrics, which are not scaled. Predictions are texts, class indices or numbers. Raises
    UserError if the metric does not exist, if its library is not installed, if there are no
    examples, or if the numbers of targets and predictions differ.
    """
    metric = find(name)
    if len(targets) != len(predictions):
        raise UserError(
            f"metric {name}: expected the same number of targets and predictions, not "
            f"{len(targets)} and {len(predictions)}"
        )
    if not targets:
        raise UserError(f"metric {name}: there are no examples; expected at least one")
    require(name)
    values = map(float, metric.function(targets, predictions))
    return dict(zip(metric.scores, values, strict=True))


def find(name: str) -> Metric:
    """Returns the metric with the given name; raises UserError if no such metric exists.

    A name with a dot, such as `my_parts.my_metric`, refers to a custom function. It takes the texts
    of the targets and the texts of the predictions and returns a number, unless
    `mtf.data.tasks.metric` declares otherwise.
    """
    if "." in name:
        return _custom(name)
    if name not in METRICS:
        raise UserError(
            f"there is no metric {name!r}; expected one of {', '.join(METRICS)}, or a custom "
            f"function such as my_parts.my_metric.{did_you_mean(name, METRICS)}"
        )
    return METRICS[name]


def _custom(name: str) -> Metric:
    from mtf.config import lookup  # Imports Fiddle, which training does not need.

    function = lookup.find(name, "metric")
    if not callable(function):
        raise UserError(f"metric {name} is a {type(function).__name__}; expected a function")
    plain = Metric(function, (name.rpartition(".")[2],))
    metric = next((each for each in METRICS.values() if each.function is function), plain)
    expected = "a number" if len(metric.scores) == 1 else f"{len(metric.scores)} numbers"

    def checked(targets: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        found = function(targets, predictions)
        values = [found] if isinstance(found, Real) else found
        is_valid = isinstance(values, Sequence) and all(isinstance(each, Real) for each in values)
        if not is_valid or len(values) != len(metric.scores):
            raise UserError(f"metric {name} returned a {type(found).__name__}; expected {expected}")
        return list(map(float, values))

    return dataclasses.replace(metric, function=checked)


def score_names(names: Sequence[str]) -> dict[tuple[str, str], str]:
    """Returns a dict mapping each pair (metric, score) to a unique name.

    The name is `score` or, if several metrics have a score of this name, `metric/score`.
    """
    scores = [(name, score) for name in names for score in find(name).scores]
    counts = Counter(score for _, score in scores)
    return {
        (name, score): score if counts[score] == 1 else f"{name}/{score}" for name, score in scores
    }


def require(name: str) -> None:
    """Imports the library of a metric; raises UserError if it is not installed."""
    if (module := find(name).module) is not None:
        import_extra(module, f"metric {name}", extra="eval")
