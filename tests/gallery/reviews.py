"""Film reviews of three words, one of which says whether the film is good."""

from __future__ import annotations

import random
from pathlib import Path

from tests.gallery import hub

WORDS = (("dull", "awful", "weak", "silly"), ("brilliant", "lovely", "superb", "wonderful"))
NOUNS = ("film", "plot", "cast", "script", "story")


def row(rng: random.Random) -> dict[str, str | int]:
    label = rng.randrange(2)
    return {"text": f"A {rng.choice(WORDS[label])} {rng.choice(NOUNS)}.", "label": label}


def write(folder: Path) -> dict[str, Path]:
    """Writes Flan-T5 and Rotten Tomatoes at small size; returns the repositories by name."""
    rng = random.Random(0)
    numbers = {"train": 400, "validation": 16, "test": 16}
    rows = {split: [row(rng) for _ in range(number)] for split, number in numbers.items()}
    texts = [f"{each['text']} Is this review good or bad?" for each in rows["train"]]
    return {
        "google/flan-t5-base": hub.write_model(folder / "model", texts),
        "cornell-movie-review-data/rotten_tomatoes": hub.write_dataset(folder / "data", rows),
    }
