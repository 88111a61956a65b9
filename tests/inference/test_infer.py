"""The inference job: writes T5X's lines in order, with the same bytes after kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mtf
from mtf.base.errors import UserError
from mtf.base.writing import locked
from mtf.data.tasks.mixtures import Mixture
from mtf.inference.decoding.settings import DecodingConfig
from mtf.jobs import Infer
from tests import small
from tests.cache.helpers import FRUIT, write_mirror
from tests.inference import models

LENGTHS = {"inputs": 16, "targets": 8}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(models.write_checkpoint(tmp_path_factory.mktemp("model")))


def job(path: str, folder: Path, /, **settings: Any) -> Infer:
    values: dict[str, Any] = {
        "checkpoint": path,
        "vocabulary": "byt5",
        "output_dir": str(folder / "out"),
        "decoding": DecodingConfig(max_length=6),
        "task_feature_lengths": LENGTHS,
        "batch_size": 4,
        "checkpoint_period": 1,
    }
    return Infer(**{**values, **settings})


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_pairs(folder: Path, number: int = 6) -> Path:
    rng = random.Random(0)
    file = folder / "pairs.tsv"
    rows = [(f"{i} {rng.choice('abc') * rng.randint(1, 9)}", f"t{i}") for i in range(number)]
    file.write_text("".join(f"{inputs}\t{targets}\n" for inputs, targets in rows))
    return file


@pytest.mark.slow
def test_lines_are_those_of_t5x_and_hold_what_the_model_says(
    checkpoint: str, tmp_path: Path
) -> None:
    file = write_pairs(tmp_path)
    pairs = [line.split("\t") for line in file.read_text().splitlines()]
    model = mtf.load(checkpoint, vocabulary="byt5", max_inputs_length=16)
    inputs = [pair[0] for pair in pairs]
    pretokenized = [
        {"inputs_pretokenized": pair[0], "targets_pretokenized": pair[1]} for pair in pairs
    ]
    job(checkpoint, tmp_path, files=str(file), mode="score").run()
    scored = read(tmp_path / "out" / "pairs-score.jsonl-00000-of-00001")
    assert [line["inputs"] for line in scored] == pretokenized
    expected = model.score(inputs, [pair[1] for pair in pairs])
    assert [line["score"] for line in scored] == pytest.approx(expected, abs=1e-4)
    assert all(line.keys() == {"inputs", "score"} for line in scored)

    job(checkpoint, tmp_path, files=str(file), mode="predict_with_aux").run()
    predicted = read(tmp_path / "out" / "pairs-predict_with_aux.jsonl-00000-of-00001")
    samples = model.samples(inputs, max_length=6)
    assert [line["prediction"] for line in predicted] == [found[0].text for found in samples]
    assert [line["aux"]["scores"] for line in predicted] == pytest.approx(
        [found[0].score for found in samples], abs=1e-4
    )
    assert [line["inputs"] for line in predicted] == pretokenized


def test_shards_make_the_same_file(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in.txt"
    file.write_text("a\nbb\nccc, which is too long for this\ndd\ne\nf\ng\n")
    sample = DecodingConfig("sample", 5)
    for shard in (1, 0):
        job(
            checkpoint, tmp_path, files=str(file), decoding=sample, shard_id=shard, num_shards=2
        ).run()
    whole = tmp_path / "out" / "in-predict.jsonl"
    shown = capsys.readouterr().out
    assert "3 lines; examples truncated to task_feature_lengths: 1" in shown
    assert f"{whole}: 7 lines from all shards" in shown
    alone = job(checkpoint, tmp_path, files=str(file), decoding=sample, output_dir=str(tmp_path))
    alone.run()
    assert (tmp_path / "in-predict.jsonl-00000-of-00001").read_bytes() == whole.read_bytes()
    assert "7 lines; examples truncated to task_feature_lengths: 1" in capsys.readouterr().out
    alone.run()
    assert "7 lines, already complete; examples truncated" in capsys.readouterr().out


def test_a_directory_that_another_job_writes_is_refused(checkpoint: str, tmp_path: Path) -> None:
    file, out = write_pairs(tmp_path), tmp_path / "out"
    with locked(out, "output_dir"):
        with pytest.raises(UserError, match=rf"^output_dir: {out} is in use by process \d+ on "):
            job(checkpoint, tmp_path, files=str(file)).run()
        assert [path.name for path in out.iterdir()] == [".lock"]
        # A shard writes other files than the job with all examples.
        job(checkpoint, tmp_path, files=str(file), shard_id=1, num_shards=2).run()
    with (
        locked(out, "output_dir", name=".lock-00000-of-00002"),
        pytest.raises(UserError, match="is in use by process"),
    ):
        job(checkpoint, tmp_path, files=str(file), num_shards=2).run()
    job(checkpoint, tmp_path, files=str(file), num_shards=2).run()
    assert len(read(out / "pairs-predict.jsonl")) == 6
    assert not list(out.glob(".lock*"))


@pytest.mark.slow
def test_killed_at_any_time_the_file_is_the_same(checkpoint: str, tmp_path: Path) -> None:
    file = write_pairs(tmp_path, number=60)

    def arguments(out: str) -> list[str]:
        values = {"output_dir": out, "vocabulary": "byt5", "batch_size": 2, "checkpoint_period": 1}
        values |= {"task_feature_lengths.inputs": 16, "decoding.max_length": 8}
        values |= {"decoding.method": "sample"}
        recipe = f"recipes.infer(checkpoint={checkpoint!r}, files={str(file)!r})"
        return [recipe, "--set", *(f"{name}={value}" for name, value in values.items())]

    def start(out: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mtf.run", *arguments(out)]
        return subprocess.Popen(command, cwd=tmp_path, env=small.environment_variables())

    small.run(arguments("whole"), tmp_path)
    name = "pairs-predict.jsonl-00000-of-00001"
    whole = (tmp_path / "whole" / name).read_bytes()
    assert len(whole.splitlines()) == 60

    parts = tmp_path / "killed" / f"tmp-{name.replace('.jsonl', '')}"
    for wanted in (3, 11):
        process = start("killed")
        while len(list(parts.glob("[0-9]*.jsonl"))) < wanted:
            assert process.poll() is None
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "killed" / name).exists()
    small.run(arguments("killed"), tmp_path)
    assert (tmp_path / "killed" / name).read_bytes() == whole
    assert not parts.exists()


def test_wrong_input_is_refused_before_anything_is_written(checkpoint: str, tmp_path: Path) -> None:
    good = tmp_path / "good.tsv"
    good.write_text("a\tb\n")
    unlabelled = tmp_path / "in.txt"
    unlabelled.write_text("a\n")
    for settings, message in [
        ({"files": str(unlabelled), "mode": "score"}, r"in\.txt:1 has no targets"),
        ({"files": str(tmp_path / "god.tsv")}, "Did you mean good.tsv"),
        ({"files": str(good), "vocabulary": "byt6"}, "vocabulary: 'byt6' is neither"),
        ({"files": str(good), "checkpoint": f"{checkpoint}0"}, "There is no model at"),
        ({"files": None}, "No input is set; set files or mixture_or_task_name"),
        ({"files": str(good), "checkpoint": None}, "checkpoint is not set"),
    ]:
        with pytest.raises(UserError, match=message):
            job(checkpoint, tmp_path, **settings).run()
        assert not (tmp_path / "out").exists()
    for settings in (
        {"mode": "predit"},
        {"shard_id": 2, "num_shards": 2},
        {"mixture_or_task_name": "x"},
        {"task_feature_lengths": {"inputs": 3}},
    ):
        with pytest.raises(UserError):
            job(checkpoint, tmp_path, files="a.txt", **settings)


def test_all_bad_lines_of_all_files_are_named_at_once(checkpoint: str, tmp_path: Path) -> None:
    bad, unlabelled = tmp_path / "bad.tsv", tmp_path / "in.jsonl"
    bad.write_text("a\tb\nc\t\n\nd\te\tf\n")
    unlabelled.write_text('{"inputs": "a"}\n{"inputs": 3}\n{"inputs": "b", "targets": ""}\n')
    settings = {"files": (str(bad), str(unlabelled)), "mode": "score"}
    with pytest.raises(UserError) as caught:
        job(checkpoint, tmp_path, **settings).run()
    first, *lines = str(caught.value).splitlines()
    assert first == "files: 6 lines cannot be used:"
    for line, start in zip(
        lines,
        [
            f"{bad}:2: 'targets' is empty",
            f"{bad}:3: the line is blank",
            f"{bad}:4: the line has 3 columns",
            f"{unlabelled}:1 has no targets",
            f"{unlabelled}:2: 'inputs' has type int",
            f"{unlabelled}:3: 'targets' is empty",
        ],
        strict=True,
    ):
        assert line.startswith(f"  {start}")
    assert not (tmp_path / "out").exists()


def test_a_score_that_is_no_number_stops_and_names_the_line(tmp_path: Path) -> None:
    parameters = models.writers.random_parameters(**models.SIZES, seed=2)
    parameters["token_embedder/embedding"][ord("z") + 3] = np.nan
    broken = models.writers.write_t5x(tmp_path / "broken", parameters)
    file = tmp_path / "in.tsv"
    file.write_text("a\tb\nc\td\nz\te\n")
    for mode in ("score", "predict"):
        with pytest.raises(UserError, match=r"in\.tsv:3: the score is NaN or infinite"):
            job(str(broken), tmp_path, files=str(file), mode=mode).run()
        assert not (tmp_path / "out").exists()


def test_what_would_be_run_is_described_and_checked(checkpoint: str, tmp_path: Path) -> None:
    file = write_pairs(tmp_path)
    text = str(job(checkpoint, tmp_path, files=str(file)).describe())
    assert "6 examples" in text and str(tmp_path / "out") in text and checkpoint in text
    file.write_text("a\tb\tc\n")
    with pytest.raises(UserError, match="has 3 columns"):
        job(checkpoint, tmp_path, files=str(file)).describe().check()
    with pytest.raises(UserError, match="There is no model at"):
        job(f"{checkpoint}0", tmp_path, files=str(file)).describe().check()


def test_results_lie_in_the_run_directory(tmp_path: Path) -> None:
    run = models.write_run(tmp_path / "run")
    file = write_pairs(tmp_path, 2)
    job(str(run), tmp_path, files=str(file), mode="score", vocabulary=None, output_dir=None).run()
    assert (run / "inference" / "pairs-score.jsonl-00000-of-00001").is_file()


def test_a_ranked_task_is_decoded_once_a_row_and_scored_once_a_choice(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = {task.name: task for task in (FRUIT, FRUIT.score_eval())}
    one_task = lambda name, *_: Mixture(name, ((tasks[name], None),))  # noqa: E731
    monkeypatch.setattr("mtf.jobs.infer.run.find_mixture", one_task)
    mirror = write_mirror(tmp_path / "mirror")

    def lines_of(name: str, mode: str) -> list[dict[str, Any]]:
        lengths = {"inputs": 48, "targets": 8}
        settings = {"mode": mode, "data_dir": mirror, "task_feature_lengths": lengths}
        job(checkpoint, tmp_path, mixture_or_task_name=name, batch_size=32, **settings).run()
        return read(tmp_path / "out" / f"{name}-{mode}.jsonl-00000-of-00001")

    predicted = lines_of(f"{FRUIT.name}_score_eval", "predict")
    # The 20 rows have the targets of the task that is not ranked.
    assert predicted == lines_of(FRUIT.name, "predict")
    assert [line["inputs"]["targets_pretokenized"] for line in predicted] == ["no", "yes"] * 10
    scored = lines_of(f"{FRUIT.name}_score_eval", "score")
    assert [line["inputs"]["targets_pretokenized"] for line in scored] == ["no", "yes"] * 20
    assert [line["inputs"]["inputs_pretokenized"] for line in scored[::2]] == [
        line["inputs"]["inputs_pretokenized"] for line in predicted
    ]


def test_a_task_is_scored_with_eos_as_it_defines(
    checkpoint: str, tmp_path: Path, prompts: Path, datasets_dir: Path
) -> None:
    name = "super_glue_copa_cause_effect_score_eval"
    job(
        checkpoint,
        tmp_path,
        mixture_or_task_name=name,
        mode="score",
        data_dir=str(datasets_dir),
        templates=str(prompts),
        task_feature_lengths={"inputs": 256, "targets": 64},
        batch_size=64,
        checkpoint_period=32,
    ).run()
    lines = read(tmp_path / "out" / f"{name}-score.jsonl-00000-of-00001")
    assert len(lines) == 2 * 60
    assert len({line["inputs"]["inputs_pretokenized"] for line in lines}) == 60
    model = mtf.load(checkpoint, vocabulary="byt5", inputs_add_eos=False, max_inputs_length=256)
    text = lines[3]["inputs"]
    expected = model.score(text["inputs_pretokenized"], text["targets_pretokenized"])
    assert lines[3]["score"] == pytest.approx(expected, abs=1e-3)
