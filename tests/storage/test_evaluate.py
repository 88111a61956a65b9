"""Evaluation of a run in a store, with its results in the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conversion.orbax import COMMITTED
from mtf.cli.cache import main as cache_main
from mtf.cli.run import main as run_main
from mtf.data.text.vocabularies import ByteVocabulary
from mtf.evaluation.settings import RankFilesConfig
from mtf.jobs import Evaluate, EvaluateResult
from mtf.storage.remote import RemotePath
from tests.inference import models
from tests.storage.conftest import put


def evaluate(run: object, file: Path, out: object) -> EvaluateResult:
    data = RankFilesConfig(
        files=str(file),
        vocabulary=ByteVocabulary(),
        task_feature_lengths={"inputs": 16, "targets": 8},
    )
    return Evaluate(str(run), data, batch_size=4, output_dir=str(out), checkpoint_steps="all").run()


@pytest.mark.slow
def test_a_run_in_a_store_is_evaluated(
    store: RemotePath, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = models.write_run(tmp_path / "run", step=7)
    run = models.write_run(tmp_path / "run", step=9)
    put(run, store / "run")
    for step in (7, 9):
        (store / "run" / "checkpoints" / f"checkpoint_{step}" / COMMITTED).write_text("")
    file = tmp_path / "mine.jsonl"
    row = {"inputs": "is it red", "choices": ["yes", "no"], "label": 0}
    file.write_text(json.dumps(row) + "\n")
    local = evaluate(run, file, tmp_path / "out")
    remote = evaluate(store / "run", file, store / "out")
    assert remote.steps == local.steps and list(remote.steps) == [7, 9]
    assert remote.best_checkpoint == store / "run" / "checkpoints" / f"checkpoint_{local.best_step}"
    names = {
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")
    }
    files = set((store / "out").infos())
    assert {name for name in names if "events" not in name} <= files | {".lock"}
    assert not [name for name in files if "tmp-" in name]
    capsys.readouterr()
    evaluate(store / "run", file, store / "out")
    assert capsys.readouterr().out.count("already evaluated") == 2


TASKS = """\
from mtf.data import tasks
def colour(row):
    return {'inputs': f"{row['n']} {row['colour']}", 'targets': row['colour']}
tasks.register(
    'colour', tasks.FileSource({'validation': 'colours.jsonl'}), colour,
    metrics=['accuracy'], answer_choices=['red', 'blue', 'green'],
)
tasks.register_mixture('colours', ['colour', 'colour_score_eval'])
"""
VOCABULARY = "data.vocabulary=@mtf.data.ByteVocabulary(extra_ids=125)"  # that of the model
LENGTHS = ["data.task_feature_lengths.inputs=16", "data.task_feature_lengths.targets=8"]
SIZES = ["partitioner.num_partitions=1", "batch_size=4"]


def predictions(out: Path | RemotePath) -> dict[str, bytes]:
    files = [path for path in out.rglob("*.jsonl") if path.is_file()]
    return {path.name: path.read_bytes() for path in files}


def tables(out: Path | RemotePath) -> dict[str, Any]:
    found = json.loads((out / "results.json").read_text())
    return {name: found[name] for name in ("tasks", "step")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "mixture"), [("evaluate", "colours"), ("t0_eval", "colour_score_eval")]
)
def test_the_cache_and_the_results_may_be_in_a_store(
    recipe: str, mixture: str, store: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "custom_colours.py").write_text(TASKS)
    rows = [{"n": i, "colour": ("red", "blue", "green")[i % 3]} for i in range(7)]
    (tmp_path / "colours.jsonl").write_text("".join(map("{}\n".format, map(json.dumps, rows))))
    run = models.write_run(tmp_path / "run")
    found = []
    for base in (tmp_path, store):
        options = ["--module", "custom_colours", "--vocabulary", "byt5", "--extra-ids", "125"]
        options += ["--split", "validation", "--num-shards", "2", "--output", str(base / "cache")]
        assert cache_main([mixture, *options]) == 0
        arguments = [f"recipes.{recipe}(checkpoint={str(run)!r}, cache_dir={f'{base}/cache'!r})"]
        arguments += ["--set", f"data.mixture_or_task_name={mixture}", "data.module=custom_colours"]
        arguments += [VOCABULARY, *LENGTHS, *SIZES, f"output_dir={base}/out"]
        assert run_main([*arguments, "--dry-run"]) == 0
        assert run_main(arguments) == 0
        found.append((predictions(base / "out"), tables(base / "out")))
    (local, local_tables), (remote, remote_tables) = found
    assert remote == local and remote_tables == local_tables
    assert len(local_tables["tasks"]) == (2 if recipe == "evaluate" else 1)
    assert local["predictions.jsonl"].count(b"\n") == 7
    assert run_main(arguments) == 2  # Results are never overwritten.
