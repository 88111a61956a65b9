"""Evaluation and inference of runs in a store, with their results in the store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mtf
from mtf.cli import fetch
from mtf.cli.cache import main as cache_main
from mtf.cli.run import main as run_main
from mtf.data.text.vocabularies import ByteVocabulary
from mtf.evaluation.settings import RankFilesConfig
from mtf.inference.decoding.settings import DecodingConfig
from mtf.jobs import Evaluate, EvaluateResult, Infer
from mtf.storage.errors import StorageError
from mtf.storage.remote import RemotePath
from tests.inference import models
from tests.storage.conftest import put_run


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
    put_run(run, store / "run")
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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_run(tmp_path_factory.mktemp("run") / "run")


def job(checkpoint: Any, files: Any, out: Any, **settings: Any) -> Infer:
    return Infer(
        checkpoint=str(checkpoint),
        files=str(files),
        output_dir=str(out),
        decoding=DecodingConfig(max_length=6),
        task_feature_lengths={"inputs": 16, "targets": 8},
        batch_size=2,
        checkpoint_period=1,
        **settings,
    )


def contents(folder: Path | RemotePath) -> dict[str, bytes]:
    """The results; the description beside them names the checkpoint, which differs."""
    found = folder.rglob("*.jsonl*")
    return {path.name: path.read_bytes() for path in found if path.is_file()}


def test_files_and_results_may_be_in_a_store(store: RemotePath, run: Path, tmp_path: Path) -> None:
    put_run(run, store / "run")
    lines = "".join(f"inputs {i}\ttargets {i}\n" for i in range(5))
    (tmp_path / "pairs.tsv").write_text(lines)
    (store / "files/pairs.tsv").write_text(lines)
    job(run, tmp_path / "pairs.tsv", tmp_path / "out").run()
    result = job(store / "run", store / "files/*.tsv", store / "out").run()
    assert [str(file) for file in result.files] == [
        f"{store}/out/pairs-predict.jsonl-00000-of-00001"
    ]
    assert contents(store / "out") == contents(tmp_path / "out")
    assert len(contents(tmp_path / "out")) == 1
    # Without output_dir, results are beside the checkpoints of the run.
    beside = Infer(
        **{**vars(job(store / "run", store / "files/*.tsv", "")), "output_dir": None}
    ).run()
    assert str(beside.files[0]).startswith(f"{store}/run/inference/")


def test_interrupted_results_are_continued(
    store: RemotePath, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "inputs.txt"
    file.write_text("".join(f"inputs {i}\n" for i in range(7)))
    job(run, file, tmp_path / "out").run()
    opened, written, broken = RemotePath.open, [], True

    @contextlib.contextmanager
    def watched(path: RemotePath, mode: str = "r", *rest: Any, **more: Any) -> Iterator[Any]:
        if "w" in mode:
            written.append(path.name)
            if broken and path.name.startswith("00002."):
                raise StorageError(path, "the store cannot be reached", "network")
        with opened(path, mode, *rest, **more) as file:
            yield file

    monkeypatch.setattr(RemotePath, "open", watched)
    with pytest.raises(Exception, match=r"output_dir: .*cannot be reached"):
        job(run, file, store / "out").run()
    broken = False
    written.clear()
    job(run, file, store / "out").run()
    parts = [name.split(".")[0] for name in written if name.startswith("000")]
    assert parts == ["00002", "00003"]
    assert contents(store / "out") == contents(tmp_path / "out")
    assert not [name for name in (store / "out").infos() if "tmp" in name]


@pytest.mark.slow
def test_a_model_is_loaded_from_a_store_and_from_its_copy(
    store: RemotePath, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_run(run, store / "run")
    expected = mtf.load(run).score("inputs", "targets")
    assert mtf.load(f"{store}/run").score("inputs", "targets") == expected
    assert fetch.main([f"{store}/run"]) == 0
    model = mtf.load(f"{store}/run/checkpoints/checkpoint_7")
    assert isinstance(model.loaded.checkpoint.path, Path)
    assert model.score("inputs", "targets") == expected
