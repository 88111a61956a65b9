"""What the data tests share: files to read, and the inverse of span corruption."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mtf.data.text.vocabularies import ByteVocabulary

BYTES = ByteVocabulary()
EOS = 1
LENGTHS_32 = {"inputs": 32, "targets": 8}


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def write_parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, **options)


def write_pairs(path: Path, num_pairs: int, seed: int = 0) -> str:
    """Writes pairs of varied length, told apart by the number that both sides start with."""
    rng = np.random.default_rng(seed)
    lines = (
        f"{i:04d}{'i' * rng.integers(1, 24)}\t{i:04d}{'t' * rng.integers(1, 12)}"
        for i in range(num_pairs)
    )
    return write(path, "\n".join(lines) + "\n")


def stored(iterator: Any) -> dict[str, Any]:
    """Returns the state of an iterator, which is small, as read back from JSON."""
    text = json.dumps(iterator.get_state())
    assert len(text) < 100_000
    state: dict[str, Any] = json.loads(text)
    return state


def without_padding(row: np.ndarray) -> list[int]:
    return [int(i) for i in row if i]


def restore(inputs: Iterable[int], targets: Iterable[int], vocab_size: int) -> list[int]:
    """Undoes span corruption: puts the targets' spans where the inputs' sentinels are.

    Fails where the sentinels do not descend from vocab_size - 1, in both alike. A segment of one
    token has no noise: only its targets have a sentinel.
    """
    inputs, targets = list(inputs), list(targets)
    assert inputs.pop() == EOS and targets.pop() == EOS
    if len(inputs) == 1:
        assert targets == [vocab_size - 1]
        return inputs
    spans: list[list[int]] = []
    for i in targets:
        if i == vocab_size - 1 - len(spans):
            spans.append([])
        else:
            spans[-1].append(i)
    original: list[int] = []
    num_found = 0
    for i in inputs:
        if i == vocab_size - 1 - num_found:
            original += spans[num_found]
            num_found += 1
        else:
            original.append(i)
    assert num_found == len(spans)
    return original
