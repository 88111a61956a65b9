"""docs/gallery/translation.md with numbers as words, which a tiny network can translate."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import sacrebleu

import mtf
from tests.gallery import hub
from tests.gallery.reader import Reader

WORDS = {
    "one": "unu",
    "two": "doi",
    "three": "trei",
    "four": "patru",
    "five": "cinci",
    "six": "șase",
    "seven": "șapte",
    "eight": "opt",
}
SMALL = {"recipes.finetune": hub.SMALL, "recipes.evaluate": ["--set", "decoding.max_length=8"]}


def _row(rng: random.Random) -> dict[str, dict[str, str]]:
    words = rng.choices(list(WORDS), k=rng.randint(4, 5))
    return {"translation": {"en": " ".join(words), "ro": " ".join(map(WORDS.__getitem__, words))}}


def _write(folder: Path) -> dict[str, Path]:
    rng = random.Random(0)
    numbers = {"train": 300, "validation": 16, "test": 16}
    rows = {split: [_row(rng) for _ in range(number)] for split, number in numbers.items()}
    texts = [text for row in rows["train"] for text in row["translation"].values()]
    texts += [f"translate English to Romanian: {text}" for text in texts]
    return {
        "google/mt5-small": hub.write_model(folder / "model", texts, "mt5"),
        "Helsinki-NLP/opus-100": hub.write_dataset(folder / "data", rows, "en-ro"),
    }


here = hub.workplace(_write)


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_translation() -> None:
    reader = Reader("translation", SMALL)

    hub.check_learned("translation", "opus-100_en-ro")

    # BLEU of the test sentences, from the written translations.
    files = Path("translation/test/predictions").glob("*-predict.jsonl-*")
    (lines,) = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    true = [line["inputs"]["targets_pretokenized"] for line in lines]
    bleu = sacrebleu.corpus_bleu([line["prediction"] for line in lines], [true]).score
    (scores,) = json.loads(Path("translation/test/results.json").read_text())["tasks"].values()
    assert len(lines) == 16
    assert scores["metrics"]["bleu"] == pytest.approx(bleu)

    best = mtf.load(f"translation/checkpoints/{reader.best}")
    exported, translations = reader.names["model"], reader.names["translations"]
    assert len(translations) == 2
    pair = ("translate English to Romanian: two", "doi")
    assert exported.score(*pair) == pytest.approx(best.score(*pair), rel=1e-5)
