"""Files of examples to rank: what is read and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.data.text.vocabularies import ByteVocabulary
from mtf.evaluation.settings import RankFilesConfig
from mtf.evaluation.task_data import RankData
from mtf.evaluation.tasks import evaluation_tasks

BYTES = ByteVocabulary()
GOOD = {"inputs": "ab", "choices": ["yes", "no"], "label": 1}


def write(folder: Path, *lines: Any, name: str = "mine.jsonl") -> Path:
    file = folder / name
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("".join(f"{text}\n" for text in texts))
    return file


def load(file: Path, **settings: Any) -> RankData:
    (task,) = evaluation_tasks(RankFilesConfig(files=str(file), vocabulary=BYTES, **settings))
    assert task.name == task.dataset == "mine" and task.load is not None
    return task.load()


def test_inputs_have_no_end_and_choices_have_one(tmp_path: Path) -> None:
    three = {"inputs": "c", "choices": ["x", "y", "z"], "label": 0}
    data = load(write(tmp_path, GOOD, "", three))
    first, second = data.examples
    assert first.inputs == [100, 101]  # bytes + 3
    assert first.choices == [[124, 104, 118, 1], [113, 114, 1]]
    assert first.correct == [False, True]
    assert (first.id, second.id) == (1, 3)  # lines
    assert len(second.choices) == 3
    assert data.num_left_out == 0
    with_end = load(tmp_path / "mine.jsonl", inputs_add_eos=True)
    assert with_end.examples[0].inputs == [100, 101, 1]


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    line = json.dumps({**GOOD, "inputs": "a\u2028b\u0085c"}, ensure_ascii=False)
    file = tmp_path / "mine.jsonl"
    file.write_text(f"\ufeff{line}\r\n{json.dumps(GOOD)}", encoding="utf-8")
    data = load(file)
    assert [e.id for e in data.examples] == [1, 2]
    assert data.examples[0].inputs == BYTES.encode("a\u2028b\u0085c")
    packed = tmp_path / "gz" / "mine.jsonl.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert load(packed).examples == data.examples


def test_equal_choices_are_equally_right(tmp_path: Path) -> None:
    line = {"inputs": "a", "choices": ["x", "y", "x"], "label": 2}
    assert load(write(tmp_path, line)).examples[0].correct == [True, False, True]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({**GOOD, "label": 2}, "2: label is 2; expected the index of the correct .* from 0 to 1"),
        ({**GOOD, "label": -1}, "2: label is -1"),
        ({**GOOD, "label": "no"}, "2: label is 'no'"),
        ({**GOOD, "label": True}, "2: label is True"),
        ({**GOOD, "choices": []}, "2: choices is not a list of at least one"),
        ({**GOOD, "choices": ["yes", ""]}, "2: choices\\[1\\] has no tokens"),
        ({**GOOD, "choices": "yes"}, "2: choices is not a list"),
        ({**GOOD, "inputs": ""}, "2: the inputs have no tokens"),
        ({"inputs": "a", "choices": ["x"], "lable": 0}, "2: 'label' is missing; .*mean lable"),
        ({**GOOD, "inputs": "a\ud800"}, "2: 'inputs' contains half of a surrogate"),
        ("[1]", "2: not a JSON object"),
        ("{", "2: not valid JSON"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path: Path, line: Any, message: str) -> None:
    file = write(tmp_path, GOOD, line)
    with pytest.raises(UserError, match=rf"^data\.files: {file}:{message}"):
        load(file)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    with pytest.raises(UserError, match=r"mine\.json does not exist\. Did you mean mine\.jsonl"):
        load(tmp_path / "mine.json")
    with pytest.raises(UserError, match="is a directory; expected files"):
        load(tmp_path)
    with pytest.raises(UserError, match=r"a\.txt must end in \.jsonl or"):
        load(write(tmp_path, GOOD, name="a.txt"))
    with pytest.raises(UserError, match="has no example"):
        load(write(tmp_path, ""))


def test_each_file_is_a_task(tmp_path: Path) -> None:
    write(tmp_path, GOOD, name="a.jsonl")
    write(tmp_path, GOOD, GOOD, name="b.jsonl")
    tasks = evaluation_tasks(RankFilesConfig(files=str(tmp_path / "*.jsonl"), vocabulary=BYTES))
    assert [task.name for task in tasks] == ["a", "b"]
    assert [len(task.load().examples) for task in tasks if task.load] == [1, 2]
