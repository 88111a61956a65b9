"""docs/gallery/evaluation_over_time.md, and its notebook, with reviews of three words."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tests import small
from tests.gallery import hub, reviews
from tests.gallery.notebook import run_notebook
from tests.gallery.reader import Reader

# The runs do not decode.
SETTINGS = {name: value for name, value in hub.SETTINGS.items() if "evaluator" not in name}
LONGER = {name: value for name, value in hub.LONGER_SETTINGS.items() if "evaluator" not in name}


here = hub.workplace(reviews.write)


def _table(folder: str) -> dict[int, dict[str, float]]:
    lines = Path(folder, "steps.tsv").read_text().splitlines()
    rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(lines, delimiter="\t")]
    return {int(row["step"]): row for row in rows}


@pytest.mark.slow
def test_evaluation_over_time(here: Path) -> None:
    sizes = ["--set", *(f"{name}={value}" for name, value in LONGER.items())]
    reader = Reader("evaluation_over_time", {"recipes.finetune": sizes})
    labels = [json.loads(line)["label"] for line in Path("choices.jsonl").read_text().splitlines()]
    assert len(labels) == 16
    decoded, ranked = _table("reviews_decoded"), _table("reviews_ranked")
    assert list(decoded) == list(ranked) == small.steps(here / "reviews") == [100, 200]

    # The accuracies, from the answers that were written.
    for step in decoded:
        (file,) = Path(f"reviews_decoded/checkpoint_{step}/predictions").glob("*-predict.jsonl-*")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        pairs = [(line["prediction"], line["inputs"]["targets_pretokenized"]) for line in lines]
        assert decoded[step]["mean_score"] == 100 * np.mean(
            [found == true for found, true in pairs]
        )
        scores = Path(f"reviews_ranked/checkpoint_{step}/predictions.jsonl").read_text()
        best = [np.argmax(json.loads(line)["log_likelihoods"]) for line in scores.splitlines()]
        accuracy = 100 * np.mean(np.array(best) == labels)
        assert ranked[step]["mean_accuracy"] == pytest.approx(accuracy)
    assert {int(step) for step in reader.names["ranked"]} == {100, 200}

    # A checkpoint by itself has the same result, and a second call adds only what is new.
    command = "recipes.t0_eval(checkpoint='reviews{}', files='choices.jsonl')"
    alone = ["partitioner.num_partitions=1", "output_dir=alone"]
    small.run([command.format("/checkpoints/checkpoint_100"), "--set", *alone], here)
    (task,) = json.loads(Path("alone/results.json").read_text())["tasks"].values()
    assert task["metrics"]["accuracy"] == ranked[100]["mean_accuracy"]
    again = [alone[0], "output_dir=reviews_ranked", "checkpoint_steps=all"]
    said = small.run([command.format(""), "--set", *again], here)
    assert said.count(": already evaluated in reviews_ranked/checkpoint_") == 2


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_the_notebook() -> None:
    changes = [f"run.{name} = {value!r}" for name, value in SETTINGS.items()]
    printed = run_notebook("evaluation_over_time", {"mtf.config.run(run)": changes})
    assert "best step: " in printed
    assert (
        len(Path("reviews_notebook/evaluation/rotten_tomatoes/steps.tsv").read_text().splitlines())
        == 3
    )
    assert Path("accuracy.png").stat().st_size > 5000
