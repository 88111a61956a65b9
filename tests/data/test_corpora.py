"""Several corpora at rates: how often each is sampled, what is left out, and exact resumes."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtf.base.errors import UserError
from mtf.data import row_streams
from mtf.data.loaders import make_evaluations, make_train_iterator, sample_examples
from mtf.data.settings import TextCorporaConfig
from mtf.data.tasks.objectives import PrefixLM
from tests.data.helpers import BYTES, stored, write
from tests.test_loaders import examples_of_row, take

SIZES = {"en": 1100, "ro": 111, "sw": 12}
# What is trained on: a tenth is held out, but at most ten documents of each.
NUM_TRAINING = {"en": 1090, "ro": 101, "sw": 11}


def write_corpora(folder: Path) -> dict[str, str | tuple[str, ...]]:
    """Writes documents `<NAME0000xxx>`, longer ones in `ro` and short ones in `en`."""
    rng = np.random.default_rng(0)
    sizes = {"en": 10, "ro": 30, "sw": 20}
    return {
        name: write(
            folder / f"{name}.txt",
            "".join(f"<{name}{i:04d}{'x' * rng.integers(1, sizes[name])}>\n" for i in range(count)),
        )
        for name, count in SIZES.items()
    }


@pytest.fixture
def corpora(tmp_path: Path) -> TextCorporaConfig:
    return TextCorporaConfig(
        vocabulary=BYTES,
        task_feature_lengths={"inputs": 64, "targets": 64},
        files=write_corpora(tmp_path),
        objective=PrefixLM(),
        num_held_out=10,
    )


def documents_in(batches: list[Any]) -> list[str]:
    """The names of the documents; all are short enough to be one example."""
    names = []
    for batch in batches:
        for row in range(len(batch["encoder_input_tokens"])):
            for inputs, targets in examples_of_row(batch, row):
                text = BYTES.decode(inputs) + BYTES.decode(targets)
                found = re.fullmatch(r"<(\w\w\d{4})x+>", text)
                assert found
                names.append(found[1])
    return names


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {name: n**0.3 for name, n in NUM_TRAINING.items()}),
        ({"sampling_exponent": 0.0}, {"en": 1, "ro": 1, "sw": 1}),
        ({"sampling_exponent": 1.0}, NUM_TRAINING),
        ({"rates": {"sw": 2.0, "en": 5.0, "ro": 3.0}}, {"en": 5, "ro": 3, "sw": 2}),
    ],
)
def test_corpora_are_sampled_at_their_rates(
    corpora: TextCorporaConfig, pack: bool, settings: dict[str, Any], expected: dict[str, float]
) -> None:
    data = dataclasses.replace(corpora, pack=pack, **settings)
    batches = take(make_train_iterator(data, batch_size=8), 500)
    counts = Counter(name[:2] for name in documents_in(batches))
    total = counts.total()
    assert total >= 4000
    for name, rate in expected.items():
        share = rate / sum(expected.values())
        # A thousand and more are counted; what waits in open rows and the last thousand of the
        # mixed sequence, of which some rows have taken more than others, make the difference.
        assert abs(counts[name] - total * share) < 0.02 * total


def test_each_corpus_is_used_once_an_epoch_without_its_held_out_documents(
    corpora: TextCorporaConfig,
) -> None:
    data = dataclasses.replace(corpora, pack=False)
    held_out = {
        re.findall(r"<(\w\w\d{4})", BYTES.decode(inputs) + BYTES.decode(targets))[0]
        for inputs, targets in sample_examples(data, 1000)
    }
    assert Counter(name[:2] for name in held_out) == {"en": 10, "ro": 10, "sw": 1}
    # One row: the documents of a corpus come in the order of its epochs.
    used = defaultdict(list)
    for name in documents_in(take(make_train_iterator(data, batch_size=1), 4000)):
        used[name[:2]].append(name)
    for corpus, size in NUM_TRAINING.items():
        everything = {f"{corpus}{i:04d}" for i in range(SIZES[corpus])} - held_out
        epochs = [used[corpus][i : i + size] for i in range(0, len(used[corpus]) - size + 1, size)]
        assert epochs
        assert all(sorted(epoch) == sorted(everything) for epoch in epochs)
        assert len(epochs) < 2 or epochs[0] != epochs[1]


def test_rows_do_not_keep_to_one_corpus(tmp_path: Path, corpora: TextCorporaConfig) -> None:
    """Two corpora in turn and an even number of rows: no row may have only one of them."""
    files = {name: corpora.files[name] for name in ("en", "ro")}
    data = dataclasses.replace(corpora, files=files, sampling_exponent=0.0, pack=False)
    batches = take(make_train_iterator(data, batch_size=8), 200)
    for row in range(8):
        rows = [{k: v[row : row + 1] for k, v in batch.items()} for batch in batches]
        counts = Counter(name[:2] for name in documents_in(rows))
        assert 60 < counts["en"] < 140


def test_a_resume_at_other_rates_is_refused(corpora: TextCorporaConfig) -> None:
    state = stored(make_train_iterator(corpora, batch_size=4))
    other = make_train_iterator(dataclasses.replace(corpora, sampling_exponent=0.5), batch_size=4)
    with pytest.raises(
        UserError,
        match=r"\[en\]=1090 of \w+ at 33.0151;.* in the checkpoint .*\[en\]=1090 of \w+ at 8.15",
    ):
        other.set_state(state)


def test_each_corpus_is_evaluated_by_itself(
    corpora: TextCorporaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations = make_evaluations(corpora, batch_size=4)
    assert list(evaluations) == ["held_out_en", "held_out_ro", "held_out_sw"]
    for name, batches in evaluations.items():
        names = documents_in(list(batches()))
        assert {found[:2] for found in names} == {name[-2:]}
        assert len(names) == len(set(names)) == {"en": 10, "ro": 10, "sw": 1}[name[-2:]]
    first, second, third, fourth = sample_examples(corpora, 4)
    corpora_of = [
        (BYTES.decode(e.inputs) + BYTES.decode(e.targets))[1:3] for e in (first, second, third)
    ]
    assert corpora_of == ["en", "ro", "sw"]
    assert (BYTES.decode(fourth.inputs) + BYTES.decode(fourth.targets))[1:3] == "en"
    monkeypatch.setattr(row_streams, "MAX_EVALUATIONS", 2)
    (joined,) = make_evaluations(corpora, batch_size=4).values()
    assert len(documents_in(list(joined()))) == 21


def test_adding_a_corpus_leaves_the_others_order_as_it_is(corpora: TextCorporaConfig) -> None:
    def order(*names: str) -> list[str]:
        data = dataclasses.replace(
            corpora, files={name: corpora.files[name] for name in names}, pack=False
        )
        used = documents_in(take(make_train_iterator(data, batch_size=1), 60))
        return list(itertools.islice((name for name in used if name.startswith("ro")), 10))

    assert order("ro", "en") == order("sw", "ro")
