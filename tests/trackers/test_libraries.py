"""Weights & Biases and MLflow, without a server: what they have stored is read back."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.base.run_end import RunEnd
from mtf.training.trackers import MLflow, Sample, TrackedRun, Tracker, Wandb
from mtf.training.trackers.tracking import IDS_FILE, Tracking

_CONFIG = {"batch_size": 8, "data.lengths['a.b']": [1, 2], "model_dir": None, "train_steps": 2}
_SAMPLES = [Sample("ein", "one", "one"), Sample("zwei", "two", "too")]


def _track(tracker: Tracker, run_dir: Path) -> str:
    """Tracks a run that is stopped after step 1, is resumed and fails; returns its id."""
    warnings: list[str] = []
    for step, end in ((0, RunEnd("stopped", "SIGTERM")), (1, RunEnd("failed", "OSError: full"))):
        tracking = Tracking([tracker], warnings.append)
        config = _CONFIG | {"train_steps": 2 + step}
        tracking.start(run_dir, TrackedRun(str(run_dir), run_dir.name, step, config))
        tracking.log_metrics("train", step + 1, {"loss": 0.5 - step, "norm": math.nan})
        tracking.log_checkpoint(step + 1, run_dir / f"checkpoint_{step + 1}")
        for number in (1, 2):  # Of two evaluations.
            tracking.log_samples(10 * step + number, _SAMPLES[:number])
        tracking.end(end)
    assert warnings == []
    (run_id,) = json.loads((run_dir / IDS_FILE).read_text()).values()
    return run_id


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    monkeypatch.chdir(tmp_path)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    store = f"sqlite:///{tmp_path}/mlflow.db"
    run_id = _track(MLflow(store, experiment="t5", tags={"team": "nlp"}), run_dir)

    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("t5")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_id, found.info.run_name) == (run_id, "run")
    assert found.info.status == "FAILED"
    assert found.data.params == {
        "batch_size": "8",
        "data.lengths__a.b__": "[1, 2]",
        "model_dir": "None",
        "train_steps": "2",  # A parameter cannot change.
    }
    losses = client.get_metric_history(run_id, "train/loss")
    assert [(each.step, each.value) for each in losses] == [(1, 0.5), (2, -0.5)]
    assert math.isnan(client.get_metric_history(run_id, "train/norm")[0].value)
    tags = found.data.tags
    assert (tags["checkpoint.1"], tags["checkpoint.2"]) == tuple(
        str(run_dir / f"checkpoint_{step}") for step in (1, 2)
    )
    assert (tags["team"], tags["end"]) == ("nlp", "OSError: full")
    folder = Path(client.download_artifacts(run_id, ""))
    assert json.loads((folder / "config.json").read_text()) == _CONFIG | {"train_steps": 3}
    table = json.loads((folder / "samples.json").read_text())
    assert table["columns"] == ["step", "input", "true", "predicted"]
    assert table["data"] == [
        [step, *sample]
        for step, number in ((1, 1), (2, 2), (11, 1), (12, 2))
        for sample in _SAMPLES[:number]
    ]


def _records(folder: Path) -> list[Any]:
    """The records of a W&B run in offline mode: a header of 7 bytes, then LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("*.wandb")
    content, position = file.read_bytes(), 7
    record, found = b"", []
    while position + 7 <= len(content):
        left_in_block = 32768 - position % 32768
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), position + 6
        if left_in_block < 7 or content[kind] == 0:
            position += left_in_block
            continue
        position = kind + 1 + length
        record += content[kind + 1 : position]
        if content[kind] in (1, 4):  # The whole record, or its last part.
            found.append(wandb_internal_pb2.Record.FromString(record))
            record = b""
    return found


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    run_id = _track(Wandb(project="t5", tags=("small",)), run_dir)

    folders = sorted((run_dir / "wandb").glob(f"offline-run-*-{run_id}*"))
    assert len(folders) == 2  # With the same id.
    for step, folder in enumerate(folders, 1):
        records = _records(folder)
        (run,) = [each.run for each in records if each.HasField("run")]
        assert (run.run_id, run.display_name, run.project) == (run_id, "run", "t5")
        assert list(run.tags) == ["small"]
        config = {each.key: json.loads(each.value_json) for each in run.config.update}
        assert config.items() >= (_CONFIG | {"train_steps": 1 + step}).items()
        history = [
            {".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for record in records
            if record.history.item
        ]
        metrics, checkpoint, *samples = history
        assert (metrics["step"], metrics["train/loss"]) == (step, 1.5 - step)
        assert checkpoint["checkpoint"] == str(run_dir / f"checkpoint_{step}")
        assert [each["step"] for each in samples] == [10 * step - 9, 10 * step - 8]
        for number, each in enumerate(samples, 1):
            table = json.loads((folder / "files" / each["samples.path"]).read_text())
            assert table["columns"] == ["input", "true", "predicted"]
            assert table["data"] == [list(sample) for sample in _SAMPLES[:number]]
        (exit_code,) = [each.exit.exit_code for each in records if each.HasField("exit")]
        assert exit_code == (0 if step == 1 else 1)


@pytest.mark.parametrize(("tracker", "package"), [(Wandb(), "wandb"), (MLflow(), "mlflow")])
def test_a_missing_package_is_named(
    tracker: Tracker, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    with pytest.raises(UserError, match=rf"run: pip install 'mtf-jax\[{package}\]'"):
        tracker.check()
