"""docs/gallery/summarization.md with articles whose summary is their first sentence."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.gallery import hub
from tests.gallery.reader import Reader
from tests.small import read_metrics

SUBJECTS = ("the council", "a museum", "the team", "a farmer")
ACTIONS = ("closed a bridge", "bought a painting", "won a match", "sold a cow")
SMALL = {
    "news": ["--vocabulary", "byt5"],
    "recipes.finetune": [*hub.SMALL, "evaluator.num_examples=16"],
    "recipes.infer": ["--set", "decoding.max_length=8"],
}


def _row(rng: random.Random) -> dict[str, str]:
    first, *others = (f"{rng.choice(SUBJECTS)} {rng.choice(ACTIONS)}" for _ in range(3))
    return {"document": ". ".join([first, *others]), "summary": first, "id": "0"}


def _write(folder: Path) -> dict[str, Path]:
    rng = random.Random(0)
    numbers = {"train": 300, "validation": 16}
    rows = {split: [_row(rng) for _ in range(number)] for split, number in numbers.items()}
    texts = [f"summarize: {row['document']}" for row in rows["train"]]
    return {
        "google/t5-v1_1-base": hub.write_model(folder / "model", texts),
        "EdinburghNLP/xsum": hub.write_dataset(folder / "data", rows),
    }


here = hub.workplace(_write)


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_summarization() -> None:
    reader = Reader("summarization", SMALL)

    hub.check_learned("news", "xsum")
    scores = read_metrics(Path("news"), "inference_eval/xsum")
    assert [line["step"] for line in scores] == [20, 40]
    assert all({"rouge1", "rouge2", "rougeLsum"} <= line.keys() for line in scores)
    # The best checkpoint is that of the highest ROUGE-1, the last one of equal ones.
    best = max(scores, key=lambda line: (line["rouge1"], line["step"]))
    assert reader.best == f"checkpoint_{best['step']}"

    articles = [json.loads(line) for line in Path("articles.jsonl").read_text().splitlines()]
    file = Path("news/summaries/articles-predict.jsonl-00000-of-00001")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = [line["inputs"]["inputs_pretokenized"] for line in lines]
    assert found == [article["inputs"] for article in articles]
    scores_of_candidates = [candidate.score for candidate in reader.names["candidates"]]
    assert len(scores_of_candidates) == 4
    assert scores_of_candidates == sorted(scores_of_candidates, reverse=True)
