"""Writing a cache: what is in it, going on after a kill, and what is refused."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mtf.cache import __main__ as command
from mtf.cache import build
from mtf.cache.format import MixtureInfo, TaskInfo, mixture_path, read_json
from mtf.cache.reader import TokenCache, check_files
from mtf.errors import UserError
from mtf.seqio.cache_format import SeqioFormat
from mtf.sources import hub
from mtf.tasks.prompted import PromptedTask
from mtf.tasks.task import Task
from mtf.text.vocabularies import ByteVocabulary
from tests.cache.helpers import (
    FRUIT,
    NAME,
    NOT_THERE,
    NUM_FRUIT,
    NUM_SUMS,
    SUMS,
    fruit_rows,
    mixture,
    settings,
    sum_rows,
    write_cache,
)
from tests.conftest import SHARED, needs_shared

BYTES = ByteVocabulary()


def without_hub(module: str, purpose: str) -> Any:
    if module == "datasets":
        raise UserError("datasets is not installed")
    return importlib.import_module(module)


def examples(cache_dir: Path, task: str, split: str = "train") -> list[dict[str, list[Any]]]:
    cache = TokenCache(cache_dir)
    reader = cache.split(cache.task(task), split)
    found = reader.examples(range(len(reader)))
    return [{name: value.tolist() for name, value in example.items()} for example in found]


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
    reports: list[build.CacheProgress] = []
    build.run_plan(build.make_plan(mixture(), chosen), 2, reports.append)
    for name in ("food_fruit", "math_sums"):
        assert examples(tmp_path / "other", name) == examples(whole, name)
        assert len(list((tmp_path / "other" / name).glob("train-*-of-00003.array_record"))) == 3
    assert reports[-1] == build.CacheProgress(2, NUM_FRUIT + 20 + NUM_SUMS, NUM_FRUIT + 20 + 60)


def test_what_was_finished_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = settings(tmp_path, num_shards=4)
    written: list[str] = []

    def stop_after(number: int) -> None:
        original = build.write_shard

        def write(work: Any, tick: Any) -> Any:
            if len(written) == number:
                raise KeyboardInterrupt
            written.append(work.path.name)
            return original(work, tick)

        monkeypatch.setattr(build, "write_shard", write)
        try:
            build.run_plan(build.make_plan(mixture(), chosen), 1, lambda _: None)
        finally:
            monkeypatch.setattr(build, "write_shard", original)

    with pytest.raises(KeyboardInterrupt):
        stop_after(3)
    (left,) = chosen.cache_dir.glob("food_fruit*")
    assert left.name == "food_fruit.incomplete"
    (left / "train-00003-of-00004.array_record.partial").write_bytes(b"half")
    with pytest.raises(KeyboardInterrupt):
        stop_after(9)  # the first task's 8 shards, and one of the second's
    assert (chosen.cache_dir / "food_fruit").is_dir()
    stop_after(99)
    assert len(written) == len(set(written)) + 4 == 12  # 8 + 4, and the names repeat in the tasks
    assert examples(chosen.cache_dir, "food_fruit") == expected(FRUIT, fruit_rows())
    assert examples(chosen.cache_dir, "math_sums") == expected(SUMS, sum_rows())
    files = {path.name for path in chosen.cache_dir.rglob("*") if path.is_file()}
    assert not [name for name in files if "partial" in name or name.endswith("record.json")]


class _Deadly(PromptedTask):
    """Ends its process, as the system does with one that takes too much memory."""

    def row_examples(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        os._exit(9)


def test_a_killed_worker_is_one_message(tmp_path: Path) -> None:
    fields = {field.name: getattr(FRUIT, field.name) for field in dataclasses.fields(FRUIT)}
    deadly = _Deadly(**fields | {"name": "deadly"})
    plan = build.make_plan(mixture((FRUIT, None), (deadly, None)), settings(tmp_path))
    with pytest.raises(UserError, match=r"worker process was killed.*fewer than --num-workers 2"):
        build.run_plan(plan, 2, lambda _: None)
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
    ]  # fmt: skip
    for message, other, fields in refusals:
        with pytest.raises(UserError, match=message):
            write_cache(tmp_path, other, **fields)
    assert files == {path: path.read_bytes() for path in cache_dir.rglob("*") if path.is_file()}


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "thesis.tex").touch()
    with pytest.raises(UserError, match="cache is neither empty nor a cache; use another path"):
        write_cache(tmp_path)


def test_missing_datasets_are_listed_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "import_extra", without_hub)
    also = dataclasses.replace(NOT_THERE, name="gone_too", dataset="gone_too")
    wanted = mixture((FRUIT, None), (NOT_THERE, 5), (also, 5))
    with pytest.raises(UserError) as refused:
        write_cache(tmp_path, wanted)
    message = str(refused.value)
    assert "2 datasets of small_mixture are missing" in message
    assert "mirror/gone/train.parquet" in message and "mirror/gone_too/train.parquet" in message
    assert not (tmp_path / "cache").exists()
    cache_dir = write_cache(tmp_path, wanted, skip_missing=True)
    info = read_json(mixture_path(cache_dir, NAME), MixtureInfo)
    assert list(info.tasks) == ["food_fruit"] and list(info.absent) == ["gone_prompt", "gone_too"]
    assert "gone/train.parquet" in info.absent["gone_prompt"]


def test_only_the_first_of_many_missing_datasets_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "import_extra", without_hub)
    tasks = [dataclasses.replace(NOT_THERE, name=f"p{i}", dataset=f"gone{i}") for i in range(30)]
    with pytest.raises(UserError) as refused:
        write_cache(tmp_path, mixture((FRUIT, None), *((task, 5) for task in tasks)))
    first, *lines, last = str(refused.value).splitlines()
    assert first.startswith("30 datasets of small_mixture are missing (to leave out their tasks, ")
    assert [f"gone{i}/train" in line for i, line in enumerate(lines)] == [True] * 10
    assert last == "  … and 20 more"
    with pytest.raises(UserError) as refused:
        write_cache(tmp_path, mixture(*((task, 5) for task in tasks)), skip_missing=True)
    assert len(str(refused.value).splitlines()) == 12


def test_evaluation_goes_on_without_story_cloze_and_training_does_not(tmp_path: Path) -> None:
    cloze = dataclasses.replace(FRUIT, name="story_cloze_x", dataset="story_cloze", subset="2016")
    with pytest.raises(UserError, match="rocstories"):
        write_cache(tmp_path, mixture((FRUIT, None), (cloze, None)))
    cache_dir = write_cache(
        tmp_path, mixture((FRUIT.score_eval(), None), (cloze.score_eval(), None))
    )
    info = read_json(mixture_path(cache_dir, NAME), MixtureInfo)
    assert "https://cs.rochester.edu/nlp/rocstories/" in info.absent["story_cloze_x_score_eval"]


def test_a_pattern_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--only food_fruits matches .* Did you mean food_fruit\?"):
        write_cache(tmp_path, only=("food_fruits",))


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


def test_objectives_and_end_of_sequence_are_kept(tmp_path: Path) -> None:
    cache_dir = write_cache(tmp_path)
    info = json.loads((cache_dir / "food_fruit" / "info.json").read_text())
    assert info["inputs_add_eos"] is False and info["targets_add_eos"] is True
    assert info["objective"] is None and info["features"] == dict.fromkeys(
        ["inputs", "targets"], "uint16"
    )


def test_the_command_line_refuses_what_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["t0_train", "--output", str(tmp_path), "--num-wrokers", "2"]) == 2
    assert "unknown options: --num-wrokers 2" in capsys.readouterr().err
    assert command.main(["x", "--output", str(tmp_path / "no"), "--check"]) == 2
    assert "does not exist" in capsys.readouterr().err


@needs_shared
def test_beam_is_installed_by_the_extra_beam(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by the extra `seqio`, although SeqIO may be missing as well."""
    for package in ("apache_beam", "seqio"):
        monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "a.jsonl").write_text('{"q": "a", "a": "b"}\n')
    options = ["files", "--files", f"train={tmp_path / 'a.jsonl'}", "--inputs", "q"]
    options += ["--targets", "a", "--vocabulary", "byt5", "--format", "seqio"]
    runner = ["--runner", "beam:BundleBasedDirectRunner"]
    assert command.main([*options, "--output", str(tmp_path / "out"), *runner]) == 2
    assert "apache_beam, which is not installed; run: pip install 'mtf-jax[beam]'" in (
        capsys.readouterr().err
    )


@needs_shared
def test_killed_and_run_again_it_goes_on(tmp_path: Path) -> None:
    """Six of T0++'s tasks on real rows: `kill -9` while they are written, then again."""
    arguments = [
        sys.executable, "-m", "mtf.cache", "t0++_train", "--output", str(tmp_path / "cache"),
        "--vocabulary", "byt5", "--only", "social_i_qa_*", "--num-shards", "4",
        "--num-workers", "1", "--split", "train", "--max-rows", "4000",
        "--data-dir", str(SHARED / "data" / "datasets"),
        "--templates", str(SHARED / "data" / "promptsource" / "templates-0.2.3.tar.gz"),
    ]  # fmt: skip
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(list(tmp_path.glob("cache/*/*record"))) < 6:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert list(tmp_path.glob("cache/*.incomplete"))
    kept = {path.stat().st_mtime_ns for path in tmp_path.glob("cache/*/*.array_record")}
    assert len(kept) >= 6
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "24,000 examples" in done.stdout or "1 were already complete" in done.stdout
    infos = [read_json(path, TaskInfo) for path in tmp_path.glob("cache/*/info.json")]
    assert len(infos) == 6 and not list(tmp_path.glob("cache/*.incomplete"))
    for info in infos:
        assert info.splits["train"].num_rows == 4000 and info.splits["train"].num_examples == 4000
    # Files keep their times when their task's folder gets its name. Of those that were there one
    # may have been without its description.
    now = {path.stat().st_mtime_ns for path in tmp_path.glob("cache/*/*.array_record")}
    assert len(now) == 24 and len(kept & now) >= len(kept) - 1
    checked = check_files(tmp_path / "cache", [info.name for info in infos])
    assert not any(problems for _, problems in checked)
