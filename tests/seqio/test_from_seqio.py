"""Taking over a SeqIO cache: ids kept, or text tokenised again."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtf.base.errors import UserError
from mtf.data.cache import build
from mtf.data.cache.format import ShardInfo, SplitInfo
from mtf.data.cache.reader import TokenCache
from mtf.data.seqio import from_seqio
from mtf.data.seqio.cache_format import SeqioFormat
from mtf.data.seqio.tfrecord import encode_example, parse_example, read_records
from mtf.data.tasks.objectives import SpanCorruption
from mtf.data.tasks.task import Task
from mtf.data.tasks.translation import TranslationTask
from mtf.data.text.vocabularies import ByteVocabulary
from tests.cache.helpers import FRUIT, SUMS, examples, mixture, settings, text_task
from tests.data import helpers
from tests.seqio.test_tfrecord import write
from tests.sources.hub_server import COMMIT, serve, use

TEXTS = [(f"Is it {i}?", "yes" if i % 3 else "no") for i in range(150)]


def example(inputs: str, targets: str, shift: int, with_text: bool = True) -> bytes:
    """As SeqIO has cached it: targets end with 1, inputs do not."""
    values: dict[str, Any] = {
        "inputs": np.array([byte + shift for byte in inputs.encode()]),
        "targets": np.array([*(byte + shift for byte in targets.encode()), 1]),
    }
    if with_text:
        values |= {"inputs_pretokenized": inputs, "targets_pretokenized": targets}
    return encode_example(values)


def write_seqio(root: Path, shift: int = 3, with_text: bool = True, name: str = FRUIT.name) -> Path:
    """Writes a task in two files; `shift` 3 makes ByT5's ids of bytes."""
    folder = root / name
    folder.mkdir(parents=True)
    records = [example(*text, shift, with_text) for text in TEXTS]
    write(folder / "train.tfrecord-00000-of-00002", records[:100])
    write(folder / "train.tfrecord-00001-of-00002", records[100:])
    return root


def take(tmp_path: Path, seqio_dir: Path | str, **fields: Any) -> list[tuple[str, str]]:
    chosen = settings(tmp_path, **fields)
    work = from_seqio.prepare(mixture((FRUIT, 7)), chosen, str(seqio_dir))
    build.run(work, 1, lambda _: None)
    return [
        (chosen.vocabulary.decode(e["inputs"]), chosen.vocabulary.decode(e["targets"]))
        for e in examples(chosen.cache_dir, FRUIT.name)
        if 1 not in e["targets"]
    ]


def test_ids_are_kept(tmp_path: Path) -> None:
    assert take(tmp_path, write_seqio(tmp_path / "p3")) == TEXTS
    info = TokenCache(tmp_path / "cache").task(FRUIT.name)
    assert info.source == f"SeqIO cache {tmp_path}/p3/{FRUIT.name}"
    split: SplitInfo = info.splits["train"]
    assert (split.num_rows, split.num_examples, len(split.shards)) == (150, 150, 1)
    assert isinstance(split.shards[0], ShardInfo)


def test_ids_without_text_are_kept_if_the_vocabulary_has_them(tmp_path: Path) -> None:
    assert take(tmp_path, write_seqio(tmp_path / "p3", with_text=False)) == TEXTS
    other = write_seqio(tmp_path / "other", shift=300, with_text=False)
    with pytest.raises(UserError, match=r"inputs has ids up to 416, .* no inputs_pretokenized"):
        take(tmp_path, other, cache_dir=tmp_path / "cache2")


def test_shards_follow_the_files(tmp_path: Path) -> None:
    vocabulary = ByteVocabulary(7)
    found = take(tmp_path, write_seqio(tmp_path / "p3"), num_shards=9, vocabulary=vocabulary)
    assert found == TEXTS
    assert len(list((tmp_path / "cache" / FRUIT.name).glob("train-*-of-00002*"))) == 2


def test_a_cache_of_rows_is_not_continued_with_one_of_seqio(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    build.run(build.prepare(mixture((FRUIT, 7)), chosen), 1, lambda _: None)
    with pytest.raises(UserError, match=rf"different task definition or templates: "
                                        rf".* {FRUIT.fingerprint}, not seqio:"):  # fmt: skip
        take(tmp_path, write_seqio(tmp_path / "p3"))


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    root = write_seqio(tmp_path / "p3", name="food_fruits")
    with pytest.raises(
        UserError, match=r"food_fruit: .*p3 contains no files .*\. Did you mean food_fruits"
    ):
        take(tmp_path, root)
    many = [(replace(FRUIT, name=f"food_{i}"), 1) for i in range(464)]
    with pytest.raises(UserError) as refused:
        from_seqio.prepare(mixture(*many), settings(tmp_path), str(root))
    assert str(refused.value).startswith("data: 464 of the 464 tasks of small_mixture are missing")
    assert str(refused.value).count("\n") < 10
    root = write_seqio(tmp_path / "p4")
    path = root / FRUIT.name / "train.tfrecord-00001-of-00002"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"train.tfrecord-00001-of-00002: record 0 has content th"):
        take(tmp_path, root)
    with pytest.raises(UserError, match="nowhere is not a directory"):
        take(tmp_path, tmp_path / "nowhere")


# A task of every kind.
PAIRS = TranslationTask(name="pairs", dataset="pairs", subset=None, source="en", target="ro")
TASKS: list[Task] = [FRUIT, SUMS, FRUIT.score_eval(), text_task(SpanCorruption()), PAIRS]


@pytest.mark.parametrize("task", TASKS, ids=[task.kind + "-" + task.name for task in TASKS])
def test_examples_come_back_from_seqios_layout_as_they_were(tmp_path: Path, task: Task) -> None:
    chosen = settings(tmp_path, num_shards=2)
    pairs = [{"translation": {"en": f"one {i}", "ro": f"unu {i}"}} for i in range(40)]
    helpers.write_parquet(tmp_path / "mirror/pairs/train.parquet", pairs)
    tasks = mixture((task, 7))

    def run(work: build.CacheBuild) -> dict[str, list[dict[str, list[Any]]]]:
        build.run(work, 1, lambda _: None)
        if work.settings.format.name == "seqio":
            return {}
        cache_dir = work.settings.cache_dir
        splits = TokenCache(cache_dir).task(task.name).splits
        return {s: sorted(examples(cache_dir, task.name, s), key=str) for s in splits}

    direct = run(build.prepare(tasks, chosen))
    seqio_settings = replace(chosen, cache_dir=tmp_path / "seqio", format=SeqioFormat())
    run(build.prepare(tasks, seqio_settings))
    back = replace(chosen, cache_dir=tmp_path / "back")
    assert run(from_seqio.prepare(tasks, back, str(tmp_path / "seqio"))) == direct
    # As P3 has been on the hub since 2024.
    write_parquet(tmp_path / "seqio", tmp_path / "parquet")
    back = replace(chosen, cache_dir=tmp_path / "from_parquet")
    assert run(from_seqio.prepare(tasks, back, str(tmp_path / "parquet"))) == direct
    # The same text in ids that the cache does not have: it is tokenised again.
    other = replace(chosen, cache_dir=tmp_path / "other", vocabulary=_Shifted())
    again = run(from_seqio.prepare(tasks, other, str(tmp_path / "seqio")))
    expected = run(build.prepare(tasks, replace(other, cache_dir=tmp_path / "direct")))
    assert again == expected and again != direct


def write_parquet(seqio_dir: Path, folder: Path) -> None:
    """Writes TFRecord files as Parquet files with the same columns."""
    for file in sorted(seqio_dir.glob("*/*.tfrecord-*")):
        rows = [
            {name: _value(name, value) for name, value in parse_example(record).items()}
            for record in read_records(file)
        ]
        name = file.name.replace(".tfrecord", "") + ".parquet"
        helpers.write_parquet(folder / file.parent.name / name, rows)


def _value(name: str, value: Any) -> Any:
    """P3's columns: texts, lists of integers, and for ranked tasks a boolean and a number."""
    if isinstance(value, list):
        return value[0].decode()
    scalar = {"is_correct": bool, "weight": float}.get(name)
    return value.tolist() if scalar is None else scalar(value[0])


def test_p3_is_read_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("huggingface_hub")
    repository = tmp_path / "repository"
    write_parquet(write_seqio(tmp_path / "p3"), repository)
    write_seqio(repository / "data")  # as before 2024
    (repository / "another_task").mkdir()
    (repository / "another_task" / "train-00000-of-00001.parquet").write_text("")
    with serve({"bigscience/P3": repository}) as server, use(server, tmp_path / "hf", monkeypatch):
        monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
        address = "hf://datasets/bigscience/P3"
        assert take(tmp_path, address) == TEXTS
        assert sorted(server.downloads) == [
            f"{FRUIT.name}/train-0000{number}-of-00002.parquet" for number in (0, 1)
        ]
        again = tmp_path / "again"
        assert take(tmp_path, address, cache_dir=again) == TEXTS
        assert len(server.downloads) == 2
        old = f"{address}@{COMMIT}/data"
        assert take(tmp_path, old, cache_dir=tmp_path / "old") == TEXTS
        info = TokenCache(tmp_path / "old").task(FRUIT.name)
        assert info.source == f"SeqIO cache {old}/{FRUIT.name}"
        for wrong, says in (
            ("hf://bigscience/P3", "expected hf://datasets/OWNER/NAME"),
            ("hf://datasets/bigscience/P4", "the Hugging Face hub cannot provide these files"),
            (f"{address}/nowhere", "does not contain the tasks' files"),
        ):
            with pytest.raises(UserError, match=says):
                take(tmp_path, wrong, cache_dir=tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


@dataclass(frozen=True)
class _Shifted(ByteVocabulary):
    """Other ids of the same bytes."""

    def encode(self, text: str) -> list[int]:
        return [258 - (i - 3) for i in super().encode(text)]


def test_a_cache_without_the_tokens_of_a_task_is_refused(tmp_path: Path) -> None:
    task = text_task(SpanCorruption())
    folder = tmp_path / "seqio" / task.name
    folder.mkdir(parents=True)
    record = encode_example({"text": np.array([5, 6]), "text_pretokenized": "bc"})
    write(folder / "train.tfrecord-00000-of-00001", [record])
    work = from_seqio.prepare(mixture((task, 7)), settings(tmp_path), str(tmp_path / "seqio"))
    with pytest.raises(UserError, match=r"feature 'targets'; it has text, text_pretokenized"):
        build.run(work, 1, lambda _: None)
