"""Reads records from a mirror, and from a stand-in for the hub."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

from mtf.base.errors import UserError
from mtf.data.sources import datasets as module
from mtf.data.sources.datasets import MissingDatasetError, hub_name, open_split
from mtf.data.tasks.t0 import datasets
from tests.data.helpers import write_parquet

ROWS: list[dict[str, Any]] = [
    {"text": "one", "label": 1, "options": ["a", "b"], "answers": {"text": ["x"], "at": [3]}},
    {"text": None, "label": 0, "options": [], "answers": {"text": [], "at": []}},
]


@pytest.fixture(autouse=True)
def no_mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("MTF_DATA_DIR", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    yield
    module._open_hub.cache_clear()


@pytest.mark.parametrize("subset", [None, "ripe"])
def test_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subset: str | None) -> None:
    write_parquet(tmp_path / "fruit" / (subset or "") / "train.parquet", ROWS)
    rows = open_split("fruit", subset, "train", data_dir=tmp_path)
    assert len(rows) == 2
    assert list(rows) == list(rows) == ROWS
    monkeypatch.setenv("MTF_DATA_DIR", str(tmp_path))
    assert list(open_split("fruit", subset, "train")) == ROWS


@pytest.mark.parametrize("row_group_size", [1, 700])
@pytest.mark.parametrize(
    ("start", "stop"), [(0, 2500), (0, 0), (699, 701), (1000, 2000), (2499, 9999), (2500, 2600)]
)
def test_a_range_of_rows(tmp_path: Path, row_group_size: int, start: int, stop: int) -> None:
    records = [{"n": i} for i in range(2500)]
    write_parquet(tmp_path / "fruit/train.parquet", records, row_group_size=row_group_size)
    rows = open_split("fruit", None, "train", data_dir=tmp_path)
    assert [row["n"] for row in rows.rows(start, stop)] == list(range(2500)[start:stop])


def test_a_range_reads_only_the_row_groups_that_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"n": i} for i in range(1000)]
    write_parquet(tmp_path / "fruit/train.parquet", records, row_group_size=100)
    rows = open_split("fruit", None, "train", data_dir=tmp_path)
    asked: list[int] = []
    whole = pq.ParquetFile.iter_batches

    def iter_batches(file: Any, *args: Any, **kwargs: Any) -> Any:
        asked.extend(kwargs["row_groups"])
        return whole(file, *args, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    assert [row["n"] for row in rows.rows(350, 420)] == list(range(350, 420))
    assert asked == [3, 4]


def test_a_missing_dataset_is_named_with_the_path_that_was_tried(tmp_path: Path) -> None:
    path = tmp_path / "super_glue" / "rte" / "train.parquet"
    message = (
        rf"^super_glue/rte, split train, is missing: the local mirror does not contain {path}\. "
        r".*needs the package datasets.*pip install 'mtf-jax\[tasks\]'\. To use a local copy, put "
        r"it at DIR/super_glue/rte/train\.parquet and set MTF_DATA_DIR=DIR$"
    )
    with pytest.raises(MissingDatasetError, match=message):
        open_split("super_glue", "rte", "train", data_dir=tmp_path)
    with pytest.raises(MissingDatasetError, match=r"no local mirror \(MTF_DATA_DIR is not set"):
        open_split("super_glue", "rte", "train")


def test_story_cloze_says_where_its_file_goes(tmp_path: Path) -> None:
    message = (
        r"rocstories/\. Put the file 'cloze_test_val__spring2016 - cloze_test_ALL_val\.csv' at "
        r"DIR/story_cloze/2016/validation\.csv and set MTF_DATA_DIR=DIR$"
    )
    with pytest.raises(MissingDatasetError, match=message) as error:
        open_split("story_cloze", "2016", "validation")
    assert error.value.skippable_in_evaluation
    folder = tmp_path / "story_cloze" / "2016"
    folder.mkdir(parents=True)
    (folder / "validation.csv").write_text(
        "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,"
        "RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding\r\n"
        'x1,A.,"B, b.",C.,D.,Wrong.,Right.,2\r\nx2,E.,F.,G.,H.,Right.,Wrong.,1\r\n',
        encoding="utf-8-sig",
    )
    rows = open_split("story_cloze", "2016", "validation", data_dir=tmp_path)
    assert len(rows) == 2
    assert next(iter(rows)) == {
        "story_id": "x1",
        **{f"input_sentence_{i}": text for i, text in enumerate(["A.", "B, b.", "C.", "D."], 1)},
        "sentence_quiz1": "Wrong.",
        "sentence_quiz2": "Right.",
        "answer_right_ending": 2,
    }
    assert [row["story_id"] for row in rows.rows(1, 2)] == ["x2"]
    with pytest.raises(MissingDatasetError, match="available splits: validation"):
        open_split("story_cloze", "2016", "test", data_dir=tmp_path)


def test_another_file_as_story_cloze(tmp_path: Path) -> None:
    folder = tmp_path / "story_cloze" / "2016"
    folder.mkdir(parents=True)
    (folder / "validation.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="the column InputStoryid is missing; expected the file"):
        open_split("story_cloze", "2016", "validation", data_dir=tmp_path)


# Questions of TREC with their classes, as in the files of its authors.
TREC = [
    ("DESC:manner", "How did serfdom develop in and then leave Russia ?"),
    ("ENTY:cremat", "What films featured the character Popeye Doyle ?"),
    ("ABBR:exp", "What is the full form of .com ?"),
    ("HUM:desc", "Who was Galileo ?"),
    ("NUM:other", "What is the number of the highest-numbered street ?"),
    ("LOC:city", "What county is Modesto , California in ?"),
]
# The numbers of the classes in the dataset's scripts 1.1.0 (2021) and 2.0.0 (2022).
TREC_2021 = [(0, 0), (1, 1), (2, 3), (3, 12), (4, 14), (5, 21)]
TREC_2022 = [(2, 26), (1, 5), (0, 1), (3, 31), (5, 43), (4, 32)]


def _trec(numbers: list[tuple[int, int]], coarse: str, fine: str) -> list[dict[str, Any]]:
    rows = zip(numbers, TREC, strict=True)
    return [{coarse: c, fine: f, "text": text} for (c, f), (_, text) in rows]


def test_trec_of_today_is_read_as_in_2021(tmp_path: Path) -> None:
    expected = _trec(TREC_2021, "label-coarse", "label-fine")
    write_parquet(
        tmp_path / "trec" / "train.parquet", _trec(TREC_2022, "coarse_label", "fine_label")
    )
    write_parquet(tmp_path / "trec" / "test.parquet", expected)
    assert list(open_split("trec", None, "test", data_dir=tmp_path)) == expected
    found = open_split("trec", None, "train", data_dir=tmp_path)
    assert (len(found), list(found), list(found.rows(4, 6))) == (6, expected, expected[4:])


def test_names_of_today() -> None:
    names = ["c4", "mc4", "xnli", "opus100", "dumitrescustefan/rlm"]
    expected = ["allenai/c4", "allenai/c4", "facebook/xnli", "Helsinki-NLP/opus-100", names[-1]]
    assert [*map(hub_name, names)] == expected
    with pytest.raises(MissingDatasetError, match="with the form"):
        hub_name("story_cloze")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "fruit" / "train.parquet"
    write_parquet(path, ROWS)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"fruit/train\.parquet is not a Parquet file: "):
        open_split("fruit", None, "train", data_dir=tmp_path)


class HubDataset(list[dict[str, Any]]):
    """Stands in for a `datasets.Dataset`."""

    def select(self, indices: range) -> HubDataset:
        return HubDataset(self[i] for i in indices)


def hub(monkeypatch: pytest.MonkeyPatch, load_dataset: Callable[..., object]) -> None:
    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_the_hub_is_asked_under_todays_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*args: object, **kwargs: object) -> object:
        asked.append((args, kwargs))
        return HubDataset(ROWS)

    hub(monkeypatch, load_dataset)
    rows = open_split("anli", None, "dev_r1")
    assert len(rows) == 2 and list(rows) == list(rows.rows(0, 9)) == ROWS
    assert list(rows.rows(1, 2)) == ROWS[1:]
    open_split("super_glue", "rte", "train")
    open_split("somebody/else", None, "test")
    open_split("somebody/else", None, "test")  # a second time, without the hub
    assert asked == [
        (("facebook/anli", None), {"split": "dev_r1"}),
        (("aps/super_glue", "rte"), {"split": "train"}),
        (("somebody/else", None), {"split": "test"}),
    ]


def test_every_dataset_of_t0_has_a_name_of_today() -> None:
    names = {row.name for row in datasets()} - {"story_cloze"}
    assert all(hub_name(name).count("/") == 1 for name in names)


def test_what_a_script_made_is_read_from_its_own_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, *args: object, **kwargs: object) -> object:
        if name != "parquet":
            raise RuntimeError("Dataset scripts are no longer supported, but found piqa.py")
        asked.append(kwargs)
        return HubDataset(ROWS)

    hub(monkeypatch, load_dataset)
    assert list(open_split("piqa", None, "train")) == ROWS
    open_split("duorc", "SelfRC", "test")
    branch = "refs/convert/parquet"
    assert [kwargs["data_files"] for kwargs in asked] == [
        f"hf://datasets/ybisk/piqa@{branch}/*/train/*.parquet",
        f"hf://datasets/ibm-research/duorc@{branch}/SelfRC/test/*.parquet",
    ]


@pytest.mark.parametrize(
    "error", [FileNotFoundError("no such"), ValueError("no such"), RuntimeError("no such")]
)
def test_what_the_hub_does_not_have_is_named(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def load_dataset(*args: object, **kwargs: object) -> object:
        raise error

    hub(monkeypatch, load_dataset)
    message = rf"The Hugging Face hub cannot provide nyu-mll/glue \({type(error).__name__}: no such"
    with pytest.raises(MissingDatasetError, match=message):
        open_split("glue", "mrpc", "train")
