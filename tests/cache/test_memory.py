"""Datasets by name or as files: in memory and from a cache they are the same batches."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from mtf import builders
from mtf.base.errors import UserError
from mtf.cli.cache import main as cache_main
from mtf.data import ByteVocabulary, DatasetTaskConfig, TaskMixtureConfig, loaders
from mtf.data.cache.memory import open_memory
from mtf.data.packing import HostBatch
from tests.data.helpers import write_parquet
from tests.test_loaders import assert_same, take

BYTES = fdl.Config(ByteVocabulary)
LENGTHS = {"inputs": 40, "targets": 8}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    for name, numbers in (("train", range(30)), ("held", range(30, 37))):
        rows = [{"the-question": f"what is {n}?", "answers": [f"it is {n}"]} for n in numbers]
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {"train": "train.jsonl", "validation": str(tmp_path / "held.jsonl")}


def built(files: dict[str, str], **fields: Any) -> TaskMixtureConfig:
    values = {"inputs": "Q: {{the_question}}", "targets": "{{answers[0]}}"}
    settings: dict[str, Any] = {"vocabulary": BYTES, "task_feature_lengths": LENGTHS}
    config = builders.data.files(files, **values | settings | fields)
    config.mixture_or_task_name = "asked"
    data: TaskMixtureConfig = fdl.build(config)
    return data


def batches(data: TaskMixtureConfig, number: int = 12) -> list[HostBatch]:
    return take(loaders.make_train_iterator(data, batch_size=4, prefetch=0), number)


def test_memory_and_cache_yield_the_same_batches(files: dict[str, str]) -> None:
    in_memory = built(files)
    options = ["--vocabulary", "byt5", "--num-workers", "1", "--output", "cache"]
    options += ["--files", *(f"{split}={path}" for split, path in files.items())]
    options += ["--inputs", "Q: {{the_question}}", "--targets", "{{answers[0]}}"]
    assert cache_main(["asked", *options]) == 0
    cached = built(files, cache_dir="cache")
    assert (in_memory.loader, cached.loader) == ("memory", "cache")
    assert_same(batches(in_memory), batches(cached))
    of_memory, of_cache = map(loaders.sample_examples, (in_memory, cached), (9, 9))
    texts = [ByteVocabulary().decode(example.inputs.tolist()) for example in of_memory]
    assert sorted(texts) == [f"Q: what is {n}?" for n in range(30, 37)]
    assert [e.targets.tolist() for e in of_memory] == [e.targets.tolist() for e in of_cache]
    with pytest.raises(UserError, match="asked in the cache cache was written with a different"):
        batches(built(files, cache_dir="cache", inputs="{{the_question}}"), 1)


def test_a_corrected_mistake_does_not_need_another_cache(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    def cached(inputs: str) -> int:
        options = ["--vocabulary", "byt5", "--num-workers", "1", "--output", "cache"]
        options += ["--files", "train=train.jsonl", "--targets", "{{answers[0]}}"]
        return cache_main(["asked", *options, "--inputs", inputs])

    assert cached("the_questoin") == 2
    assert "there is no column 'the_questoin'" in capsys.readouterr().err
    assert not Path("cache").exists()
    # The last record has a list instead of a text.
    with open("train.jsonl", "a") as file:
        file.write('\n{"the-question": ["why?"], "answers": ["it is 30"]}')
    assert cached("the-question") == 2
    assert "record 30" in capsys.readouterr().err
    assert Path("cache/asked.incomplete").is_dir()
    assert cached("Q: {{the_question}}") == 0


def test_a_missing_split_is_named_with_those_that_exist(tmp_path: Path) -> None:
    write_parquet(tmp_path / "asked/train.parquet", [{"question": "why?", "answer": "so"}])
    config = builders.data.hub("asked", inputs="question", targets="answer", vocabulary=BYTES)
    config.split, config.data_dir = "trian", str(tmp_path)
    with pytest.raises(UserError, match=r"split trian.* Did you mean train\?"):
        loaders.make_train_iterator(fdl.build(config), batch_size=4)


def test_an_unknown_metric_is_refused_at_once(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--vocabulary", "byt5", "--output", "cache", "--files", "train=train.jsonl"]
    options += ["--inputs", "the-question", "--targets", "the-question", "--metrics", "f2"]
    assert cache_main(["asked", *options]) == 2
    assert "there is no metric 'f2'" in capsys.readouterr().err
    assert not Path("cache").exists()


def test_a_run_on_changed_files_is_not_resumed(files: dict[str, str]) -> None:
    first = loaders.make_train_iterator(built(files), batch_size=4, prefetch=0)
    next(first)
    again = loaders.make_train_iterator(built(files), batch_size=4, prefetch=0)
    again.set_state(first.get_state())
    assert_same([next(first)], [next(again)])
    other = loaders.make_train_iterator(built(files, inputs="{{the_question}}"), batch_size=4)
    with pytest.raises(UserError, match="different training text or settings"):
        other.set_state(first.get_state())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"inputs": "question"}, "there is no column 'question'; the columns are the-question"),
        ({"inputs": "inputs"}, "template='the-question ||| answers'"),
        ({"inputs": "Q: {the question}"}, "no column 'the question'; the columns are the-question"),
        ({"inputs": "{{question}}"}, "'question' is undefined; the columns are the-question"),
        ({"inputs": "{{the_question"}, "is not valid Jinja"),
        ({"targets": "answers"}, "'answers' has type list; expected text or a number"),
        ({"answer_choices": ("a", "b")}, "'it is 0'; expected one of answer_choices"),
    ],
)
def test_wrong_columns_and_templates(
    files: dict[str, str], fields: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError) as refused:
        open_memory(built(files, **fields), "train")
    assert str(refused.value).startswith("task asked")
    assert "record 0 of train" in str(refused.value)
    assert expected in str(refused.value)


def test_settings_that_contradict_each_other(files: dict[str, str]) -> None:
    task: dict[str, Any] = {"inputs": "a", "targets": "b", "files": files}
    for change, expected in (
        ({"dataset": "x"}, "but dataset and files are set"),
        ({"files": None}, "but all of them are None"),
        ({"targets": ""}, "data.task.targets is empty"),
    ):
        with pytest.raises(UserError, match=expected):
            DatasetTaskConfig(**task | change)
    with pytest.raises(UserError, match="does not read a cache"):
        dataclasses.replace(built(files), cache_dir="cache")
