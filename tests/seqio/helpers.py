"""What the SeqIO tests share: a mirror of made-up datasets, and settings of the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mtf.data.settings import TaskMixtureConfig
from tests.data.helpers import BYTES as BYTES
from tests.data.helpers import write_parquet

# Tasks that need no templates.
TRANSLATION = "opus100_en_ro_mt"
DOCUMENTS = "c4_v220_span_corruption"
NUM_SENTENCES = {"train": 60, "validation": 7}


def write_mirror(root: Path) -> Path:
    """Writes sentences that start with their number, of many lengths, and 300 documents."""
    for split, number in NUM_SENTENCES.items():
        rows = [
            {"translation": {"en": f"{i}: {'a' * (i % 7)}", "ro": f"{i}! {'b' * (i % 5)}"}}
            for i in range(number)
        ]
        write_parquet(root / "opus100" / "en-ro" / f"{split}.parquet", rows)
    documents = [{"text": f"Document {i}. {'word ' * (i % 90)}"} for i in range(300)]
    write_parquet(root / "c4" / "en" / "train.parquet", documents)
    write_parquet(root / "c4" / "en" / "validation.parquet", documents[:20])
    return root


def mixture(mirror: Path, name: str = TRANSLATION, **settings: Any) -> TaskMixtureConfig:
    """Returns settings of the live loader, not packed and not shuffled unless told."""
    values: dict[str, Any] = {
        "vocabulary": BYTES,
        "task_feature_lengths": {"inputs": 64, "targets": 32},
        "loader": "seqio",
        "data_dir": str(mirror),
        "pack": False,
        "shuffle": False,
    }
    return TaskMixtureConfig(mixture_or_task_name=name, **{**values, **settings})
