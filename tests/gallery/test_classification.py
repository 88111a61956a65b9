"""docs/gallery/classification.md, and its notebook, with reviews of three words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.gallery import hub, reviews
from tests.gallery.notebook import run_notebook
from tests.gallery.reader import Reader

here = hub.workplace(reviews.write)


def _check_accuracy(folder: str) -> None:
    """The accuracy is the percentage of reviews whose correct choice has the highest likelihood.

    How high it is depends on rounding for a network as small as this, so that is not checked.
    """
    lines = [
        json.loads(line) for line in Path(folder, "predictions.jsonl").read_text().splitlines()
    ]
    assert len(lines) == 16
    found = [line["correct"][np.argmax(line["log_likelihoods"])] for line in lines]
    accuracy = 100 * sum(found) / len(found)
    (results,) = json.loads(Path(folder, "results.json").read_text())["tasks"].values()
    assert results["metrics"]["accuracy"] == pytest.approx(accuracy)


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_classification() -> None:
    reader = Reader("classification", {"recipes.finetune": hub.LONGER})
    for folder in ("film_reviews_before", "film_reviews_after"):
        _check_accuracy(folder)
    hub.check_learned("film_reviews_run", "film_reviews")
    ranking = reader.names["ranking"]
    assert ranking.best == int(ranking.scores[1] > ranking.scores[0])
    assert "| majority |" in Path("film_reviews_before/results.md").read_text()
    assert sum(reader.names["probabilities"]) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_the_notebook() -> None:
    changes = [f"config.{name} = {value!r}" for name, value in hub.LONGER_SETTINGS.items()]
    printed = run_notebook("classification", {"mtf.config.run(": changes})
    assert "step 200: " in printed
    (percentage,) = re.findall(
        r"^([\d.]+)% of 16 test reviews are ranked correctly$", printed, re.M
    )
    assert f"{percentage}%" in {f"{number / 16:.1%}" for number in range(17)}
