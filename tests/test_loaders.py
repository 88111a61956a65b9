"""The batches that training gets: complete, the same however they are shared, and resumable."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtf.base.errors import UserError
from mtf.data.loaders import make_evaluations, make_train_iterator, sample_examples
from mtf.data.packing import HostBatch
from mtf.data.settings import TextFilesConfig
from mtf.data.tasks.objectives import PrefixLM, SpanCorruption
from tests.data.helpers import (
    BYTES,
    EOS,
    LENGTHS_32,
    restore,
    stored,
    without_padding,
    write,
    write_pairs,
)

PAIR_LENGTHS = {"inputs": 64, "targets": 32}


def take(iterator: Any, count: int) -> list[HostBatch]:
    return list(itertools.islice(iterator, count))


def assert_same(left: list[HostBatch], right: list[HostBatch]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name].dtype == b[name].dtype
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def examples_of_row(batch: HostBatch, row: int) -> list[tuple[list[int], list[int]]]:
    """Returns the (inputs, targets) of a row, by its segment ids where it has any."""
    inputs, targets = batch["encoder_input_tokens"][row], batch["decoder_target_tokens"][row]
    if "encoder_segment_ids" not in batch:
        return [(without_padding(inputs), without_padding(targets))]
    of_inputs, of_targets = batch["encoder_segment_ids"][row], batch["decoder_segment_ids"][row]
    return [
        (inputs[of_inputs == i].tolist(), targets[of_targets == i].tolist())
        for i in range(1, of_targets.max(initial=0) + 1)
    ]


def pair_number(inputs: list[int], targets: list[int]) -> int:
    """Returns which pair of `write_pairs` an example is; fails unless it is whole."""
    assert inputs[-1] == EOS and targets[-1] == EOS
    left, right = BYTES.decode(inputs), BYTES.decode(targets)
    assert re.fullmatch(r"\d{4}i+", left) and re.fullmatch(r"\d{4}t+", right)
    assert left[:4] == right[:4]
    return int(left[:4])


def of_files(files: str, lengths: dict[str, int] = LENGTHS_32, **settings: Any) -> TextFilesConfig:
    return TextFilesConfig(vocabulary=BYTES, task_feature_lengths=lengths, files=files, **settings)


def write_documents(path: Path, num_documents: int) -> str:
    rng = np.random.default_rng(1)
    return write(
        path, "".join(f"<{i:04d}{'x' * rng.integers(1, 90)}>\n" for i in range(num_documents))
    )


@pytest.fixture
def pairs(tmp_path: Path) -> TextFilesConfig:
    return of_files(write_pairs(tmp_path / "pairs.tsv", 90), PAIR_LENGTHS, num_held_out=7)


@pytest.fixture
def documents(tmp_path: Path) -> TextFilesConfig:
    return of_files(
        write_documents(tmp_path / "documents.txt", 43),
        objective=SpanCorruption(merge_documents=4),
        num_held_out=4,
    )


# Completeness.


@pytest.mark.parametrize("num_shards", [1, 2, 4])
def test_every_pair_is_used_once_an_epoch_and_never_a_held_out_one(
    pairs: TextFilesConfig, num_shards: int
) -> None:
    data = dataclasses.replace(pairs, pack=False)
    held_out = {pair_number(*map(list, pair)) for pair in sample_examples(data, 100)}
    assert len(held_out) == 7
    shards = [
        make_train_iterator(data, batch_size=4, shard_id=i, num_shards=num_shards)
        for i in range(num_shards)
    ]
    used = []
    for _ in range(2 * 83 // 4 + 1):
        for shard in shards:
            batch = next(shard)
            rows = range(len(batch["encoder_input_tokens"]))
            used += [pair_number(*examples_of_row(batch, row)[0]) for row in rows]
    first, second = used[:83], used[83:166]
    assert sorted(first) == sorted(second) == sorted(set(range(90)) - held_out)
    assert first != second
    assert first != sorted(first)


@pytest.mark.parametrize("batch_size", [2, 4, 16])
def test_every_document_is_used_once_an_epoch(documents: TextFilesConfig, batch_size: int) -> None:
    """39 documents in groups of 4 are 10 units an epoch; row r has units r, r + batch_size, …"""
    data, num_groups = dataclasses.replace(documents, pack=False), 10
    iterator = make_train_iterator(data, batch_size=batch_size)
    texts = [""] * batch_size
    for batch in take(iterator, 600 // batch_size):
        for row in range(batch_size):
            ((inputs, targets),) = examples_of_row(batch, row)
            texts[row] += BYTES.decode(restore(inputs, targets, 259))
    held_out_text = "".join(
        BYTES.decode(restore(*example, 259)) for example in sample_examples(data, 1000)
    )
    held_out = set(re.findall(r"<(\d{4})x+>", held_out_text))
    assert len(held_out) == 4
    epochs: defaultdict[int, list[str]] = defaultdict(list)
    complete = [0] * batch_size
    for row, text in enumerate(texts):
        # No separator, nothing lost at the edges of segments: whole documents one after another.
        found = re.findall(r"<(\d{4})x+>", text)
        assert re.fullmatch(r"(<\d{4}x+>)*(<[\dx]*)?", text)
        group = row
        while found:
            size = 3 if group % num_groups == num_groups - 1 else 4
            if len(found) < size:
                break
            epochs[group // num_groups] += found[:size]
            found = found[size:]
            group += batch_size
        complete[row] = group
    num_complete_epochs = min(complete) // num_groups
    assert num_complete_epochs >= 1
    expected = sorted({f"{i:04d}" for i in range(43)} - held_out)
    for epoch in range(num_complete_epochs):
        assert sorted(epochs[epoch]) == expected
    if num_complete_epochs > 1:
        assert epochs[0] != epochs[1]


@pytest.mark.parametrize("num_lines", [1, 2, 20])
@pytest.mark.parametrize("pack", [True, False])
def test_tiny_files_train(tmp_path: Path, num_lines: int, pack: bool) -> None:
    path = write(tmp_path / "tiny.txt", "\n".join(f"line number {i}" for i in range(num_lines)))
    data = of_files(path, pack=pack)
    batches = take(make_train_iterator(data, batch_size=16), 5)
    assert all((batch["decoder_loss_weights"].sum(axis=1) > 0).all() for batch in batches)
    assert len(sample_examples(data, 10)) == (num_lines > 1)
    assert (len(list(make_evaluations(data, batch_size=16)["held_out"]())) > 0) == (num_lines > 1)


# Examples.


def test_pairs_are_truncated_with_their_end(tmp_path: Path) -> None:
    path = write(tmp_path / "long.tsv", "abcdefgh\tijklmnop\n")
    data = of_files(path, {"inputs": 4, "targets": 3}, pack=False)
    batch = next(make_train_iterator(data, batch_size=1))
    assert batch["encoder_input_tokens"].tolist() == [[100, 101, 102, EOS]]
    assert batch["decoder_target_tokens"].tolist() == [[108, 109, EOS]]
    assert batch["decoder_input_tokens"].tolist() == [[0, 108, 109]]
    without = dataclasses.replace(data, inputs_add_eos=False)
    batch = next(make_train_iterator(without, batch_size=1))
    assert batch["encoder_input_tokens"].tolist() == [[100, 101, 102, 103]]
    assert batch["decoder_target_tokens"].tolist() == [[108, 109, EOS]]


def test_segments_fill_the_inputs(tmp_path: Path) -> None:
    path = write(tmp_path / "long.txt", "a" * 5000)
    data = of_files(path)
    for batch in take(make_train_iterator(data, batch_size=2), 30):
        assert (batch["encoder_input_tokens"] != 0).all()
        assert (batch["decoder_target_tokens"][:, -1] == EOS).all()
    without = dataclasses.replace(data, inputs_add_eos=False)
    batch = next(make_train_iterator(without, batch_size=2))
    assert (batch["encoder_input_tokens"] != 0).sum(axis=1).tolist() == [31, 31]


def test_a_long_document_gives_one_aligned_chunk_an_epoch(tmp_path: Path) -> None:
    chunks = ["a" * 100, "b" * 100, "c" * 50]
    path = write(tmp_path / "long.txt", "".join(chunks))
    data = of_files(
        path, objective=SpanCorruption(max_document_tokens=100), pack=False, shuffle=False
    )
    text = ""
    for batch in take(make_train_iterator(data, batch_size=1), 200):
        ((inputs, targets),) = examples_of_row(batch, 0)
        text += BYTES.decode(restore(inputs, targets, 259))
    runs = ["".join(run) for _, run in itertools.groupby(text)][:-1]
    assert {run[0] for run in runs} == set("abc")
    assert all(len(run) % (50 if run[0] == "c" else 100) == 0 for run in runs)


def test_noise_differs_between_epochs_and_seeds(tmp_path: Path) -> None:
    path = write(tmp_path / "one.txt", "a line of text that is one document " * 3)
    data = of_files(path, {"inputs": 128, "targets": 32}, pack=False)
    targets = [
        batch["decoder_target_tokens"].tobytes()
        for batch in take(make_train_iterator(data, batch_size=1), 20)
    ]
    assert len(set(targets)) == 20
    other = next(make_train_iterator(dataclasses.replace(data, seed=1), batch_size=1))
    assert other["decoder_target_tokens"].tobytes() not in targets


def test_without_shuffling_pairs_come_in_the_files_order(pairs: TextFilesConfig) -> None:
    data = dataclasses.replace(pairs, pack=False, shuffle=False, num_held_out=0)
    batches = take(make_train_iterator(data, batch_size=10), 10)
    numbers = [pair_number(*examples_of_row(b, row)[0]) for b in batches for row in range(10)]
    assert numbers == [*range(90), *range(10)]


# Held-out examples.


@pytest.mark.parametrize("num_shards", [1, 2, 4])
@pytest.mark.parametrize("pack", [True, False])
def test_evaluation_loses_nothing(pairs: TextFilesConfig, pack: bool, num_shards: int) -> None:
    data = dataclasses.replace(pairs, pack=pack)
    expected = sorted(pair_number(*map(list, pair)) for pair in sample_examples(data, 100))
    found = []
    num_batches = []
    for shard in range(num_shards):
        evaluations = make_evaluations(data, batch_size=4, shard_id=shard, num_shards=num_shards)
        batches = list(evaluations["held_out"]())
        num_batches.append(len(batches))
        for batch in batches:
            assert batch["encoder_input_tokens"].shape == (4 // num_shards, 64)
            for row in range(4 // num_shards):
                if batch["decoder_loss_weights"][row].any():
                    found += [pair_number(*pair) for pair in examples_of_row(batch, row)]
    assert sorted(found) == expected
    assert len(set(num_batches)) == 1


def test_held_out_examples_are_always_the_same(documents: TextFilesConfig) -> None:
    first, second = sample_examples(documents, 3), sample_examples(documents, 3)
    assert len(first) == 3
    for a, b in zip(first, second, strict=True):
        assert a.inputs.tolist() == b.inputs.tolist()
        assert a.targets.tolist() == b.targets.tolist()
    other = sample_examples(dataclasses.replace(documents, seed=5), 3)
    assert [e.inputs.tolist() for e in other] != [e.inputs.tolist() for e in first]


# Sharing and resuming.


def test_a_place_of_another_run_is_refused(tmp_path: Path, pairs: TextFilesConfig) -> None:
    state = stored(make_train_iterator(pairs, batch_size=4))
    with pytest.raises(
        UserError, match=r"has no entry for row 4, 5, 6, 7 of the batch, .* another batch_size"
    ):
        make_train_iterator(pairs, batch_size=8).set_state(state)
    changed = dataclasses.replace(pairs, files=write_pairs(tmp_path / "b.tsv", 90, seed=1))
    with pytest.raises(
        UserError, match="data position in the checkpoint belongs to different training text"
    ):
        make_train_iterator(changed, batch_size=4).set_state(state)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"normalization": "romanian_diacritics"},
            "now normalization=romanian_diacritics, but in .* normalization=None",
        ),
        ({"inputs_add_eos": False}, "now inputs_add_eos=False"),
        (
            {"objective": SpanCorruption(merge_documents=5)},
            "now .*=SpanCorruption.*, but in the checkpoint .*",
        ),
        (
            {"task_feature_lengths": {"inputs": 33, "targets": 8}},
            "now .*'inputs': 33.*, but in the checkpoint .*",
        ),
        ({"num_held_out": 3}, "now num_training=40, but in .* num_training=39"),
    ],
)
def test_a_place_of_other_examples_is_refused(
    documents: TextFilesConfig, changes: dict[str, Any], named: str
) -> None:
    state = stored(make_train_iterator(documents, batch_size=4))
    other = make_train_iterator(dataclasses.replace(documents, **changes), batch_size=4)
    with pytest.raises(UserError, match=named):
        other.set_state(state)


@pytest.mark.parametrize("suffix", ["txt", "tsv"])
def test_romanian_is_written_with_commas(tmp_path: Path, suffix: str) -> None:
    line = "şi ţară ŞI ŢARĂ façade"
    path = write(tmp_path / f"ro.{suffix}", f"{line}\n" if suffix == "txt" else f"{line}\t{line}\n")
    data = of_files(
        path, PAIR_LENGTHS, normalization="romanian_diacritics", objective=PrefixLM(), pack=False
    )
    ((inputs, targets),) = examples_of_row(next(make_train_iterator(data, batch_size=1)), 0)
    text = BYTES.decode(inputs) + BYTES.decode(targets)
    # Commas below are U+0219, U+021B, U+0218 and U+021A; the French ç keeps its cedilla.
    expected = "\u0219i \u021bară \u0218I \u021aARĂ façade"
    assert text == (expected if suffix == "txt" else expected * 2)


def test_a_batch_that_processes_cannot_share_is_refused(pairs: TextFilesConfig) -> None:
    with pytest.raises(
        UserError, match="batch_size: 10 rows cannot be divided evenly among 4 processes"
    ):
        make_train_iterator(pairs, batch_size=10, num_shards=4)


def test_files_without_any_token_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "void.jsonl", '{"text": ""}\n' * 3)
    with pytest.raises(UserError, match="the training text contains no tokens"):
        next(make_train_iterator(of_files(path), batch_size=2))


def test_lengths_are_checked_when_json_lines_turn_out_to_be_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "one"}\n')
    with pytest.raises(UserError, match=r"\['targets'\] must be at least 14, not 4"):
        make_train_iterator(of_files(path, {"inputs": 64, "targets": 4}), batch_size=2)
