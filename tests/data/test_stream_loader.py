"""Streaming: disjoint and complete streams, exact resumes, bounded memory, what can go wrong."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtf.base.errors import UserError
from mtf.data import row_streams, stream_loader
from mtf.data.loaders import make_evaluations, make_train_iterator, provenance, sample_examples
from mtf.data.packing import HostBatch
from mtf.data.settings import HubStreamConfig
from mtf.data.sources import hub_stream as hub
from mtf.data.tasks.objectives import PrefixLM, SpanCorruption
from tests.data.helpers import BYTES, stored, write_parquet
from tests.test_loaders import assert_same, examples_of_row, take

pytest.importorskip("datasets")

LENGTHS = {"inputs": 64, "targets": 64}


def write_files(folder: Path, num_files: int, num_documents: int, kind: str = "jsonl") -> str:
    """Writes documents `<FFDDDD…>`, told apart by file and number; returns their pattern."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(num_files)
    for file in range(num_files):
        texts = [f"<{file:02d}{i:04d}{'x' * rng.integers(1, 50)}>" for i in range(num_documents)]
        if kind == "parquet":
            rows = [{"text": text, "id": i} for i, text in enumerate(texts)]
            write_parquet(folder / f"{file:02d}.parquet", rows, row_group_size=7)
        else:
            lines = (json.dumps({"text": text}) + "\n" for text in texts)
            (folder / f"{file:02d}.jsonl").write_text("".join(lines))
    return str(folder / f"*.{kind}")


def stream(pattern: str, **values: Any) -> HubStreamConfig:
    settings: dict[str, Any] = {
        "vocabulary": BYTES,
        "task_feature_lengths": LENGTHS,
        "dataset": "parquet" if pattern.endswith("parquet") else "json",
        "data_files": pattern,
        "objective": PrefixLM(),
        "num_streams": 4,
        "window_documents": 16,
    }
    return HubStreamConfig(**settings | values)


def documents_of(batches: list[HostBatch], first_row: int = 0, num_rows: int | None = None) -> str:
    """The text of some rows, in order; PrefixLM's inputs and targets follow each other."""
    text = ""
    for batch in batches:
        rows = range(first_row, first_row + (num_rows or len(batch["encoder_input_tokens"])))
        for row in rows:
            for example in examples_of_row(batch, row):
                text += documents_of_example(*example)
    return text


def names_in(text: str) -> list[str]:
    assert re.fullmatch(r"(<\d{6}x+>)*", text)
    return re.findall(r"<(\d{6})x+>", text)


def all_names(num_files: int, num_documents: int) -> set[str]:
    return {f"{file:02d}{i:04d}" for file in range(num_files) for i in range(num_documents)}


# Completeness.


@pytest.mark.parametrize(
    ("kind", "num_files", "shuffle"),
    [("jsonl", 1, True), ("parquet", 3, True), ("jsonl", 4, False), ("parquet", 7, True)],
)
def test_streams_are_disjoint_and_complete_in_every_epoch(
    tmp_path: Path, kind: str, num_files: int, shuffle: bool
) -> None:
    """60 documents a file, fewer or more files than streams; two processes with 2 streams each."""
    data = stream(write_files(tmp_path, num_files, 60, kind), pack=False, shuffle=shuffle)
    shards = [make_train_iterator(data, batch_size=4, shard_id=i, num_shards=2) for i in range(2)]
    batches = [take(shard, 3 * 60 * num_files // 4 + 200) for shard in shards]
    used = [names_in(documents_of(batches[i // 2], i % 2, 1)) for i in range(4)]
    parts = [set(names) for names in used]
    assert set.union(*parts) == all_names(num_files, 60)
    assert sum(map(len, parts)) == 60 * num_files
    for names, part in zip(used, parts, strict=True):
        epochs = [names[i : i + len(part)] for i in (0, len(part), 2 * len(part))]
        assert all(sorted(epoch) == sorted(part) for epoch in epochs)
        assert (epochs[0] != epochs[1]) == shuffle
        assert (epochs[0] != sorted(epochs[0])) == shuffle


def test_pairs_are_complete_in_every_epoch_and_resume_exactly(tmp_path: Path) -> None:
    """Also between two windows, and from a template over columns."""
    rows = [{"id": i, "answer": f"no {i}"} for i in range(50)]
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"inputs": "which: {{id}}", "targets": "answer", "pack": False, "num_streams": 1}
    data = stream(str(tmp_path / "*.jsonl"), **columns, eval_split="train", eval_documents=3)

    def pairs(batches: list[HostBatch]) -> list[tuple[str, str]]:
        examples = [each for b in batches for row in range(4) for each in examples_of_row(b, row)]
        return [(BYTES.decode(inputs), BYTES.decode(targets)) for inputs, targets in examples]

    expected = sorted((f"which: {i}", f"no {i}") for i in range(50) for _ in range(2))
    iterator = make_train_iterator(data, batch_size=4)
    first, states = [], []
    for _ in range(50):
        first += pairs(take(iterator, 1))
        states.append(stored(iterator))
    assert sorted(first[:100]) == sorted(first[100:]) == expected
    assert first[:100] != first[100:]
    for step in (3, 4, 24, 30):
        resumed = make_train_iterator(data, batch_size=4)
        resumed.set_state(states[step - 1])
        assert pairs(take(resumed, 20)) == first[4 * step :][:80]
    held_out = sample_examples(data, 5)
    assert [BYTES.decode(each.inputs) for each in held_out] == ["which: 0", "which: 1", "which: 2"]
    with pytest.raises(UserError, match=r"data.targets: .* has no column 'anwser'; .* answer"):
        make_train_iterator(dataclasses.replace(data, targets="anwser"), batch_size=4)
    with pytest.raises(UserError, match=r"data.inputs and data.targets must both be set"):
        dataclasses.replace(data, targets=None)


def test_processes_may_have_parts_of_two_streams(tmp_path: Path) -> None:
    """Four streams of six rows, and three processes."""
    data = stream(write_files(tmp_path, 5, 40), objective=SpanCorruption(merge_documents=4))
    whole = take(make_train_iterator(data, batch_size=24), 20)
    shards = [
        take(make_train_iterator(data, batch_size=24, shard_id=i, num_shards=3), 20)
        for i in range(3)
    ]
    joined = [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*shards, strict=True)
    ]
    assert_same(joined, whole)


# Resuming.


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"window_documents": 17}, "now window_documents=17, but in .* window_documents=16"),
        ({"seed": 3}, "now seed=3, but in .* seed=0"),
    ],
)
def test_a_state_of_another_run_is_refused(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    data = stream(write_files(tmp_path, 4, 9))
    state = stored(make_train_iterator(data, batch_size=4))
    with pytest.raises(UserError, match=named):
        make_train_iterator(dataclasses.replace(data, **changes), batch_size=4).set_state(state)


def test_resuming_reads_no_more_than_a_window_and_no_window_is_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = stream(write_files(tmp_path, 4, 300), num_streams=4, window_documents=32)
    texts_read: list[str] = []
    windows: list[int] = []
    read, read_window = hub.Split.text, stream_loader._Reader.read

    def text(self: hub.Split, row: Any) -> str:
        texts_read.append(read(self, row))
        return texts_read[-1]

    def window(self: Any, start: Any) -> Any:
        found = read_window(self, start)
        windows.append(len(found[0]))
        return found

    monkeypatch.setattr(hub.Split, "text", text)
    monkeypatch.setattr(stream_loader._Reader, "read", window)
    iterator = make_train_iterator(data, batch_size=4, prefetch=0)
    batches = take(iterator, 200)
    assert max(windows) == 32
    state = stored(iterator)
    del iterator, batches
    texts_read.clear()
    resumed = make_train_iterator(data, batch_size=4, prefetch=0)
    resumed.set_state(state)
    next(resumed)
    # Of each stream the window in use, and the one that is read ahead; perhaps one after those.
    assert len(texts_read) <= 4 * 3 * 32


# Subsets.


def open_as(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each subset NAME of any dataset be the files of `folder/NAME`."""
    import datasets

    load = datasets.load_dataset

    def load_dataset(path: str, name: str | None, **values: Any) -> Any:
        files = str(folder / str(name) / "*.jsonl")
        return load("json", data_files={"train": files, "validation": files}, streaming=True)

    hub._load.cache_clear()
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


def test_subsets_are_sampled_at_their_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"ro": 6.0, "en": 3.0, "sw": 1.0}
    for number, name in enumerate(rates, start=1):
        folder = tmp_path / name
        write_files(folder, 4, 50)
        for path in folder.iterdir():
            path.write_text(re.sub(r"<\d\d", f"<{number:02d}", path.read_text()))
    open_as(tmp_path, monkeypatch)
    data = stream("x.jsonl", dataset="mc4", data_files=None, subsets=rates)
    iterator = make_train_iterator(data, batch_size=8)
    counts, batches = Counter[str](), []
    for step in range(300):
        if step == 111:
            state = stored(iterator)
            iterator = make_train_iterator(data, batch_size=8)
            iterator.set_state(state)
        batches.append(next(iterator))
    for batch in batches:
        for row in range(8):
            for example in examples_of_row(batch, row):
                counts[names_in(documents_of_example(*example))[0][:2]] += 1
    total = counts.total()
    assert total > 2400
    for number, rate in enumerate(rates.values(), start=1):
        # What waits in open rows is the difference: 8 rows of each of 4 streams.
        assert abs(counts[f"{number:02d}"] - total * rate / 10) < 20
    evaluations = make_evaluations(data, batch_size=8)
    assert list(evaluations) == ["validation_ro", "validation_en", "validation_sw"]
    monkeypatch.setattr(row_streams, "MAX_EVALUATIONS", 2)
    joined = make_evaluations(data, batch_size=8)
    assert list(joined) == ["validation"]
    found = [
        names_in(documents_of_example(*example))[0][:2]
        for row in range(8)
        for example in examples_of_row(next(joined["validation"]()), row)
    ]
    assert Counter(found).keys() == {"01", "02", "03"}
    assert max(Counter(found).values()) - min(Counter(found).values()) <= 2


def documents_of_example(inputs: list[int], targets: list[int]) -> str:
    return BYTES.decode(inputs) + BYTES.decode(targets)


# Evaluation.


def test_the_first_documents_of_the_split_are_evaluated(tmp_path: Path) -> None:
    train, validation = write_files(tmp_path / "t", 4, 9), write_files(tmp_path / "v", 2, 30)
    data = stream(
        train,
        dataset="json",
        data_files={"train": train, "validation": validation},
        eval_documents=40,
    )
    expected = sorted(all_names(2, 30))[:40]
    for num_shards in (1, 2):
        found = ""
        for shard_id in range(num_shards):
            evaluations = make_evaluations(
                data, batch_size=4, shard_id=shard_id, num_shards=num_shards
            )
            assert list(evaluations) == ["validation"]
            first, again = (list(evaluations["validation"]()) for _ in range(2))
            assert_same(first, again)
            found += documents_of(first)
        assert sorted(names_in(found)) == expected
    assert len(sample_examples(data, 5)) == 5


def test_no_more_documents_are_read_than_are_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, validation = write_files(tmp_path / "t", 4, 9), write_files(tmp_path / "v", 2, 3000)
    files = {"train": train, "validation": validation}
    data = stream(train, dataset="json", data_files=files)
    read, num_read = hub.Split.text, 0

    def text(self: hub.Split, row: Any) -> str:
        nonlocal num_read
        num_read += 1
        return read(self, row)

    monkeypatch.setattr(hub.Split, "text", text)
    batches = make_evaluations(data, batch_size=4)["validation"]
    first = list(itertools.islice(batches(), 20))
    assert sum(bool(row.any()) for b in first for row in b["encoder_input_tokens"]) == 80
    names, num_first = names_in(documents_of(first)), num_read
    assert len(names) < num_first < len(names) + 20
    assert_same(list(itertools.islice(batches(), 20)), first)
    assert num_read == num_first
    everything = list(batches())
    assert_same(everything[:20], first)
    assert sorted(names_in(documents_of(everything))) == sorted(all_names(2, 3000))
    assert num_read == 6000


def test_without_the_split_nothing_is_evaluated(tmp_path: Path) -> None:
    data = stream(write_files(tmp_path, 4, 9))
    assert make_evaluations(data, batch_size=4) == {}
    assert make_evaluations(dataclasses.replace(data, eval_split=None), batch_size=4) == {}
    assert sample_examples(data, 5) == []


# What can go wrong.


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def text(self: hub.Split, row: Any) -> str:
        raise ConnectionError("the connection was reset")

    monkeypatch.setattr(hub.Split, "text", text)
    files = write_files(tmp_path, 4, 40)
    data = stream("json", data_files={"train": files, "validation": files})
    with pytest.raises(UserError, match=r"json \(train\) cannot be read: the connection was re"):
        next(make_train_iterator(data, batch_size=4))
    with pytest.raises(UserError, match=r"json \(validation\) cannot be read: the connection was"):
        next(make_evaluations(data, batch_size=4)["validation"]())


@pytest.mark.parametrize(
    ("changes", "sharing", "message"),
    [
        (
            {},
            {"batch_size": 6},
            "a batch of 6 rows cannot be divided evenly among 4 streams; expected a divisor",
        ),
        (
            {},
            {"batch_size": 16, "num_shards": 3},
            "16 rows cannot be divided evenly among 3 process",
        ),
        ({"split": "trian"}, {}, r"no split 'trian'; it has 'train'\. Did you mean train"),
        ({"text_key": "txt"}, {}, r"no column 'txt'; it has 'text'\. Did you mean text"),
        ({"data_files": "nothing*.jsonl"}, {}, "files that match .*nothing.* contain no records"),
        ({"num_streams": 512}, {"batch_size": 512}, "has no documents; reduce data.num"),
    ],
)
def test_impossible_streams_are_refused(
    tmp_path: Path, changes: dict[str, Any], sharing: dict[str, int], message: str
) -> None:
    data = stream(write_files(tmp_path, 4, 9), **changes)
    with pytest.raises(UserError, match=message):
        next(make_train_iterator(data, **{"batch_size": 4} | sharing))


def test_a_dataset_that_the_hub_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load_dataset(*_: Any, **__: Any) -> Any:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'me/mine' doesn't exist\nor …")

    hub._load.cache_clear()
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    # As where there is a network.
    monkeypatch.setattr(hub, "import_datasets", lambda _: datasets)
    monkeypatch.setattr(hub, "no_hub_hint", lambda: "")
    data = stream("a.jsonl", dataset="me/mine", data_files=None)
    assert "dataset=me/mine" in provenance(data)["data"]
    with pytest.raises(UserError, match="me/mine was not found: Dataset 'me/mine' doesn't exist;"):
        make_train_iterator(data, batch_size=4)
