"""Objectives through SeqIO: the lengths of T5's definitions, nothing lost, seeds that decide."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.helpers import restore
from tests.seqio.helpers import BYTES, write_parquet

seqio = pytest.importorskip("seqio")

NUM_DOCUMENTS = 40
FIRST_SENTINEL = 258


@pytest.fixture(scope="module")
def texts(mirror: Path) -> list[str]:
    return [f"{i} {'text ' * (80 * (i % 4))}" for i in range(NUM_DOCUMENTS)]


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mirror")
    rows = [{"text": f"{i} {'text ' * (80 * (i % 4))}"} for i in range(NUM_DOCUMENTS)]
    # An empty document is none.
    write_parquet(root / "c4" / "en" / "train.parquet", [*rows, {"text": ""}])
    return root


def examples(mirror: Path, name: str, seed: int | None = 0, **settings: Any) -> list[Any]:
    from mtf.seqio import tasks as seqio_tasks

    task = seqio_tasks.build(name, BYTES, mirror).provider
    lengths = {"inputs": 512, "targets": 114}
    settings = {"shuffle": False, "sequence_length": lengths, **settings}
    dataset = task.get_dataset(split="train", seed=seed, **settings)
    return list(dataset.as_numpy_iterator())


def test_span_corruption_to_512_takes_568_tokens_and_gives_114_targets(
    mirror: Path, texts: list[str]
) -> None:
    made = examples(mirror, "c4_v220_span_corruption")
    *whole, last = [(len(example["inputs"]), len(example["targets"])) for example in made]
    assert set(whole) == {(512, 114)}
    assert last[0] <= 512 and last[1] <= 114
    pieces = [restore(example["inputs"], example["targets"], 259) for example in made]
    assert {len(piece) for piece in pieces[:-1]} == {568}
    assert list(itertools.chain(*pieces)) == list(itertools.chain(*map(BYTES.encode, texts)))


def test_the_same_seed_is_the_same_noise_and_epochs_differ(mirror: Path) -> None:
    name = "c4_v220_span_corruption"
    first, again, other = (examples(mirror, name, seed) for seed in (1, 1, 2))
    for left, right in zip(first, again, strict=True):
        np.testing.assert_array_equal(left["inputs"], right["inputs"])
    assert any((a["inputs"] != b["inputs"]).any() for a, b in zip(first[:3], other, strict=False))
    epochs = examples(mirror, name, 1, num_epochs=2)
    # Documents are joined over the end of an epoch, so one more segment may be whole.
    same_place = epochs[len(first)]["inputs"][:100], first[0]["inputs"][:100]
    assert not np.array_equal(*same_place)


def test_prefix_lm_splits_and_joins_to_the_text(mirror: Path, texts: list[str]) -> None:
    lengths = {"inputs": 512, "targets": 512}
    made = examples(mirror, "c4_v220_prefix_lm", sequence_length=lengths)
    joined: list[int] = []
    for example in made:
        assert example["inputs"][-1] == example["targets"][-1] == 1
        joined += [*example["inputs"][:-1], *example["targets"][:-1]]
    assert joined == list(itertools.chain(*map(BYTES.encode, texts)))
    assert len({len(example["inputs"]) for example in made}) > 2


def test_bert_style_targets_are_the_whole_segment(mirror: Path, texts: list[str]) -> None:
    lengths = {"inputs": 512, "targets": 512}
    made = examples(mirror, "c4_v220_bert_style", sequence_length=lengths)
    targets = [int(i) for example in made for i in example["targets"][:-1]]
    assert targets == list(itertools.chain(*map(BYTES.encode, texts)))
    inputs = np.concatenate([example["inputs"][:-1] for example in made])
    changed = inputs != np.array(targets)
    assert 0.12 < changed.mean() < 0.18
    assert 0.85 < (inputs[changed] == FIRST_SENTINEL).mean() < 0.95


def test_iid_denoising_has_noise_of_many_lengths_that_fits(mirror: Path) -> None:
    lengths = {"inputs": 512, "targets": 256}
    made = examples(mirror, "c4_v220_iid_denoising", sequence_length=lengths)
    noise = [len(example["targets"]) for example in made[:-1]]
    assert len(set(noise)) > 2
    assert all(len(example["inputs"]) <= 512 for example in made)


def test_targets_that_are_too_short_are_refused(mirror: Path) -> None:
    with pytest.raises(ValueError, match="114"):
        examples(mirror, "c4_v220_span_corruption", sequence_length={"inputs": 512, "targets": 113})
