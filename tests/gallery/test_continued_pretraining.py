"""docs/gallery/continued_pretraining.md with sentences of a few Romanian words."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import mtf
from tests.gallery import hub
from tests.gallery.reader import Reader
from tests.small import read_metrics, steps

SMALL = [
    "--set",
    "train_steps=40",
    "batch_size=8",
    "optimizer.learning_rate.base_learning_rate=0.01",
    "trainer.stats_period=5",
    "trainer.eval_period=20",
    "checkpoint.save.period=20",
    "data.task_feature_lengths={'inputs': 64, 'targets': 16}",
    "num_samples=0",
]
SIZES = {"recipes.continue_pretraining": SMALL, "--from": ["--set", "train_steps=60"]}


def _sentence(rng: random.Random) -> str:
    subject, verb, place = (
        rng.choice(words)
        for words in (
            ("calul", "copilul", "câinele", "băiatul", "orașul"),
            ("aleargă", "doarme", "rămâne", "cântă"),
            ("acasă", "în pădure", "lângă râu", "pe câmpie"),
        )
    )
    return f"{subject} {verb} {place}, şi apoi {subject} nu mai {verb} {place}."


def _write(folder: Path) -> dict[str, Path]:
    rng = random.Random(0)
    rows = {
        split: [{"text": _sentence(rng)} for _ in range(number)]
        for split, number in {"train": 600, "validation": 60}.items()
    }
    texts = [row["text"] for row in rows["train"]]
    (folder / "one.txt").write_text("".join(f"{text}\n" for text in texts))
    return {
        "google/mt5-small": hub.write_model(folder / "model", texts, "mt5"),
        "allenai/c4": hub.write_dataset(folder / "data", rows, "ro"),
    }


here = hub.workplace(_write)


@pytest.mark.slow
def test_continued_pretraining(here: Path) -> None:
    Path("ro").mkdir()
    (here.parent / "one.txt").rename("ro/one.txt")
    Reader("continued_pretraining", SIZES)
    # The run of 40 steps went on to 60.
    assert [line["step"] for line in read_metrics(here / "ro_mt5")][-1] == 60
    assert steps(here / "ro_mt5") == [20, 40, 60]
    assert steps(here / "ro_files") == [20, 40]
    for run, evaluated in (("ro_mt5", "validation_ro"), ("ro_files", "held_out")):
        hub.check_learned(run, evaluated)

    pair = ("calul aleargă", "acasă")
    exported, trained = (mtf.load(here / name).score(*pair) for name in ("ro_mt5_hf", "ro_mt5"))
    assert exported == pytest.approx(trained, rel=1e-5)
