"""Writing a cache: what is in it, going on after a kill, and what is refused."""

from __future__ import annotations

import dataclasses
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.cli import cache as command
from mtf.data.cache import build
from mtf.data.cache.format import MixtureInfo, mixture_path, read_json
from mtf.data.cache.reader import TokenCache, check_files
from mtf.data.cache.recording import CacheProgress
from mtf.data.seqio.cache_format import SeqioFormat
from mtf.data.sources import hub
from mtf.data.tasks.prompted import PromptedTask
from mtf.data.tasks.task import Task
from mtf.data.text.vocabularies import ByteVocabulary
from tests import small
from tests.cache.helpers import (
    FRUIT,
    NAME,
    NOT_THERE,
    NUM_FRUIT,
    NUM_SUMS,
    SUMS,
    examples,
    fruit_rows,
    mixture,
    settings,
    sum_rows,
    write_cache,
)

BYTES = ByteVocabulary()


def without_hub(module: str, purpose: str) -> Any:
    if module == "datasets":
        raise UserError("datasets is not installed")
    return importlib.import_module(module)


def expected(task: Task, rows: list[dict[str, Any]], split: str = "train") -> list[dict[str, Any]]:
    """What the task itself makes of the rows, each text as bytes + 3 (ByT5's ids)."""
    return [
        {name: [byte + 3 for byte in text[name].encode()] for name in ("inputs", "targets")}
        for text in task.examples(rows, split)
    ]


def test_examples_are_those_of_the_tasks_without_end_of_sequence(tmp_path: Path) -> None:
    cache_dir = write_cache(tmp_path)
    assert examples(cache_dir, "food_fruit") == expected(FRUIT, fruit_rows())
    assert examples(cache_dir, "math_sums") == expected(SUMS, sum_rows())
    assert len(examples(cache_dir, "food_fruit", "validation")) == 20
    info = TokenCache(cache_dir).task("math_sums")
    assert list(info.splits) == ["train"]  # the dataset has no other
    split = info.splits["train"]
    assert (split.num_rows, split.num_examples, split.num_dropped) == (NUM_SUMS, 60, 30)
    lengths = [len(example["inputs"]) for example in examples(cache_dir, "math_sums")]
    assert split.num_tokens["inputs"] == sum(lengths) and split.max_tokens["inputs"] == max(lengths)
    found = read_json(mixture_path(cache_dir, NAME), MixtureInfo)
    assert found.tasks == {"food_fruit": None, "math_sums": 60} and not found.absent
    assert found.fingerprint == mixture().fingerprint


def test_ranked_tasks_keep_what_ranks_them(tmp_path: Path) -> None:
    task = FRUIT.score_eval()
    cache_dir = write_cache(tmp_path, mixture((task, None)))
    found = examples(cache_dir, task.name, "validation")
    assert len(found) == 40 and list(TokenCache(cache_dir).task(task.name).splits) == ["validation"]
    assert [example["idx"] for example in found[:4]] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert [example["is_correct"] for example in found[:4]] == [[1], [0], [0], [1]]
    assert all(example["weight"] == [1.0] for example in found)
    choices = [bytes(i - 3 for i in example["targets"]).decode() for example in found[:2]]
    assert choices == ["no", "yes"]


def test_shards_and_processes_change_nothing(tmp_path: Path) -> None:
    whole = write_cache(tmp_path)
    chosen = settings(tmp_path, cache_dir=tmp_path / "other", num_shards=3)
    reports: list[CacheProgress] = []
    build.run(build.prepare(mixture(), chosen), 2, reports.append)
    for name in ("food_fruit", "math_sums"):
        assert examples(tmp_path / "other", name) == examples(whole, name)
        assert len(list((tmp_path / "other" / name).glob("train-*-of-00003.array_record"))) == 3
    assert reports[-1] == CacheProgress(2, NUM_FRUIT + 20 + NUM_SUMS, NUM_FRUIT + 20 + 60)


class _Deadly(PromptedTask):
    """Ends its process, as the system does with one that takes too much memory."""

    def row_examples(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        os._exit(9)


def test_a_killed_worker_is_one_message(tmp_path: Path) -> None:
    fields = {field.name: getattr(FRUIT, field.name) for field in dataclasses.fields(FRUIT)}
    deadly = _Deadly(**fields | {"name": "deadly"})
    work = build.prepare(mixture((FRUIT, None), (deadly, None)), settings(tmp_path))
    with pytest.raises(UserError, match=r"worker process was killed.*--num-workers less than 2"):
        build.run(work, 2, lambda _: None)
    assert not (tmp_path / "cache" / "deadly").exists()


def test_a_second_call_writes_nothing_and_adds_what_is_new(tmp_path: Path) -> None:
    write_cache(tmp_path, only=("food_*",))
    path = tmp_path / "cache" / "food_fruit" / "info.json"
    before = path.stat().st_mtime_ns
    info = read_json(mixture_path(tmp_path / "cache", NAME), MixtureInfo)
    assert info.tasks == {"food_fruit": None} and list(info.absent) == ["math_sums"]
    write_cache(tmp_path, only=("math_*",))
    assert path.stat().st_mtime_ns == before
    info = read_json(mixture_path(tmp_path / "cache", NAME), MixtureInfo)
    assert list(info.tasks) == ["food_fruit", "math_sums"] and not info.absent


def test_other_settings_are_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    cache_dir = write_cache(tmp_path)
    files = {path: path.read_bytes() for path in cache_dir.rglob("*") if path.is_file()}
    changed = dataclasses.replace(
        FRUIT, template=dataclasses.replace(FRUIT.template, jinja="{{ x }} ||| {{ x }}")
    )
    refusals: list[tuple[str, Any, dict[str, Any]]] = [
        (r"made with the vocabulary byte\+0 \(byt5\), not with byte\+5", None,
         {"vocabulary": ByteVocabulary(5)}),
        ("made with --seed 0, not 3", None, {"seed": 3}),
        ("made with --format array_record, not seqio", None, {"format": SeqioFormat()}),
        (f"definition or templates: .* {FRUIT.fingerprint}, not {changed.fingerprint}",
         mixture((changed, None)), {}),
        ("made without --max-rows, not with --max-rows 5", None, {"max_rows": 5}),
        ("has the splits train, validation, but not test", None, {"splits": ("test",)}),
        (r"--only food_fruits matches .* Did you mean food_fruit\?", None,
         {"only": ("food_fruits",)}),
        ("mirror is neither empty nor a cache; use another path", None,
         {"cache_dir": tmp_path / "mirror"}),
    ]  # fmt: skip
    for message, other, fields in refusals:
        with pytest.raises(UserError, match=message):
            write_cache(tmp_path, other, **fields)
    assert files == {path: path.read_bytes() for path in cache_dir.rglob("*") if path.is_file()}


def test_missing_datasets_are_listed_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "import_extra", without_hub)
    also = dataclasses.replace(NOT_THERE, name="gone_too", dataset="gone_too")
    wanted = mixture((FRUIT, None), (NOT_THERE, 5), (also, 5))
    with pytest.raises(UserError) as refused:
        write_cache(tmp_path, wanted)
    message = str(refused.value)
    assert "2 of the 3 tasks of small_mixture are missing:\n" in message
    assert message.endswith("To use only 1 of 3 tasks, add --skip-missing.")
    assert "gone_prompt and 1 others: 2 datasets (gone, gone_too) are missing: " in message
    assert "mirror/NAME/SPLIT.parquet" in message
    assert not (tmp_path / "cache").exists()
    cache_dir = write_cache(tmp_path, wanted, skip_missing=True)
    info = read_json(mixture_path(cache_dir, NAME), MixtureInfo)
    assert list(info.tasks) == ["food_fruit"] and list(info.absent) == ["gone_prompt", "gone_too"]
    assert "gone/train.parquet" in info.absent["gone_prompt"]


def test_evaluation_goes_on_without_story_cloze_and_training_does_not(tmp_path: Path) -> None:
    cloze = dataclasses.replace(FRUIT, name="story_cloze_x", dataset="story_cloze", subset="2016")
    with pytest.raises(UserError, match="rocstories"):
        write_cache(tmp_path, mixture((FRUIT, None), (cloze, None)))
    cache_dir = write_cache(
        tmp_path, mixture((FRUIT.score_eval(), None), (cloze.score_eval(), None))
    )
    info = read_json(mixture_path(cache_dir, NAME), MixtureInfo)
    assert "https://cs.rochester.edu/nlp/rocstories/" in info.absent["story_cloze_x_score_eval"]


def test_checking_finds_a_changed_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache_dir = write_cache(tmp_path)
    names = ["food_fruit", "math_sums"]
    assert list(check_files(cache_dir, names)) == [(name, []) for name in names]
    path = cache_dir / "math_sums" / "train-00000-of-00001.array_record"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    (_, nothing), (_, problems) = check_files(cache_dir, names)
    assert not nothing and "checksum does not match" in problems[0] and str(path) in problems[0]
    assert command.main([NAME, "--output", str(cache_dir), "--check"]) == 1
    assert "2 tasks read, 1 damaged" in capsys.readouterr().out


def test_a_cache_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["x", "--output", str(tmp_path / "no"), "--check"]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes_of_a_cache_while_workers_start(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A terminal sends Ctrl-C to all of them."""
    (tmp_path / "asked.jsonl").write_text('{"question": "?", "answer": "!"}\n' * 100_000)
    command = ["-m", "mtf.cache", "asked", "--files", "train=asked.jsonl", "--output", "cache"]
    command += ["--inputs", "{{question}}", "--targets", "{{answer}}", "--vocabulary", "byt5"]
    with small.hearing_ctrl_c():
        process = subprocess.Popen(
            [sys.executable, *command, "--num-shards", "2", "--num-workers", "2"],
            cwd=tmp_path,
            env=small.environment_variables(),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    while not (tmp_path / "cache" / "cache.json").exists():
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.3)
    os.killpg(process.pid, number)
    _, err = process.communicate()
    what = "Interrupted" if number == signal.SIGINT else f"Stopped by {number.name}"
    said = f"{what}: run the same command again to continue.\n"
    assert (process.returncode, err) == (128 + number, said)
