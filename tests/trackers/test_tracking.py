"""Trackers in a run, a tracker of the user's own, and W&B and MLflow without a server."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mtf import config as config_lib
from mtf.base.errors import UserError
from mtf.base.run_end import RunEnd
from mtf.training.trackers import MLflow, Sample, TrackedRun, Tracker, Wandb
from mtf.training.trackers.tracking import IDS_FILE, Tracking
from tests.small import ROOT, arguments, read_metrics, run, write_text

_OWN = '''
import json
from mtf.base.errors import UserError
from mtf.training.trackers import Tracker


class Log(Tracker):
    """Writes every call to a file."""

    def __init__(self, path: str, fails: str = ""):
        self.path, self.fails = path, fails

    def _call(self, name, *given):
        with open(self.path, "a") as file:
            file.write(json.dumps([name, *given]) + "\\n")
        if name == self.fails:
            raise ConnectionError("no network\\nmore lines")

    def check(self):
        if self.fails == "check":
            raise UserError("my tracker needs a key")

    def start(self, run):
        self._call("start", run.id, run.step, run.name, run.directory, run.config)
        return "id-1" if run.id is None else run.id + "+"

    def log_metrics(self, step, metrics):
        self._call("metrics", step, metrics)

    def log_samples(self, step, samples):
        self._call("samples", step, [sample._asdict() for sample in samples])

    def log_checkpoint(self, step, path):
        self._call("checkpoint", step, path)

    def end(self, end):
        self._call("end", end.how, end.reason)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's working directory, with the tracker of docs/extending.md and another one."""
    folder = tmp_path_factory.mktemp("user")
    page = (ROOT / "docs" / "extending.md").read_text()
    (code,) = re.findall(r"^```python\n(import csv\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (folder / "my_parts.py").write_text(code)
    (folder / "own_tracker.py").write_text(_OWN)
    write_text(folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in ("my_parts", "own_tracker"):
        sys.modules.pop(name, None)


def calls(file: Path) -> list[list[Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def sent(found: list[list[Any]]) -> list[tuple[int, dict[str, float]]]:
    """The metrics among the calls."""
    return [(call[1], call[2]) for call in found if call[0] == "metrics"]


def without_timing(sent: list[tuple[int, dict[str, float]]]) -> list[Any]:
    return [
        (step, {name: x for name, x in metrics.items() if "/timing/" not in name})
        for step, metrics in sent
    ]


@pytest.fixture(scope="module")
def command(folder: Path) -> list[str]:
    """The arguments of a run with six trackers, of which three fail."""
    failing = ", ".join(
        f"@own_tracker.Log(path='{name}.log', fails='{name}')"
        for name in ("start", "metrics", "end")
    )
    trackers = (
        f"[@my_parts.CsvTracker(path='a.csv'), @my_parts.CsvTracker(path='b, @b.csv'), {failing}]"
    )
    return arguments(
        "text.txt",
        train_steps=4,
        model_dir="whole",
        trackers=trackers.replace("[", "[@own_tracker.Log(path='whole.log'), "),
        trainer__eval_period=2,
        checkpoint__save__period=2,
        data__num_held_out=8,
        num_samples=2,
    )


@pytest.fixture(scope="module")
def printed(folder: Path, command: list[str]) -> str:
    """What the run prints."""
    return run(command, folder)


def test_the_tracker_of_the_page(
    folder: Path, command: list[str], printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    rows = list(csv.reader((folder / "a.csv").open()))
    losses = {(run, int(step)): float(x) for run, step, name, x in rows if name == "train/loss"}
    assert losses == {("whole", m["step"]): m["loss"] for m in read_metrics(folder / "whole")}
    assert (folder / "b, @b.csv").read_text() == (folder / "a.csv").read_text()

    loaded = config_lib.load_config(folder / "whole")
    flat = config_lib.as_flat_text(loaded)
    assert "trackers.1 = @my_parts.CsvTracker\ntrackers.1.path = 'a.csv'\n" in flat
    assert run([*command, "--print", "all"], folder) == flat
    assert run([*command, "--diff", "whole"], folder).endswith(": the same\n")
    code: dict[str, Any] = {"__name__": "code"}
    exec(run([*command, "--print", "python"], folder), code)
    assert config_lib.as_flat_text(code["config"]()) == flat


def test_what_a_tracker_receives(folder: Path, printed: str) -> None:
    found = calls(folder / "whole.log")
    assert found[0][:5] == ["start", None, 0, "whole", str(folder / "whole")]
    config = found[0][5]
    assert config["model.network.emb_dim"] == 32
    assert config["model.network.mlp_activations"] == ["gelu", "linear"]
    assert config["trackers.0"] == "@own_tracker.Log"
    assert [call[0] for call in found[1:]] == [
        *("metrics", "metrics", "metrics", "checkpoint") * 2,
        *("samples", "end"),
    ]
    for place in ("train", "training_eval/held_out"):
        received = [
            {"step": step, **{n.removeprefix(f"{place}/"): x for n, x in metrics.items()}}
            for step, metrics in without_timing(sent(found))
            if f"{place}/loss" in metrics
        ]
        assert received == read_metrics(folder / "whole", place)
    for call in found:
        if call[0] == "checkpoint":
            assert (Path(call[2]) / "state").is_dir() and call[2].endswith(f"_{call[1]}")
    assert found[-2][1] == 4 and len(found[-2][2]) == 2
    for sample in found[-2][2]:
        assert f"input      {sample['input']}\ntrue       {sample['true']}\n" in printed
    assert found[-1] == ["end", "finished", None]


def test_each_evaluation_that_decodes_sends_samples(folder: Path) -> None:
    command = arguments(
        "text.txt",
        train_steps=4,
        model_dir="decodes",
        trackers="@own_tracker.Log(path='decodes.log')",
        evaluator="@mtf.evaluation.InferEvalConfig(period=2, num_examples=4)",
        data__num_held_out=8,
        num_samples=2,
    )
    printed = run(command, folder)
    found = [call[1:] for call in calls(folder / "decodes.log") if call[0] == "samples"]
    assert [(step, len(samples)) for step, samples in found] == [(2, 2), (4, 2)]
    # At the end, the run prints those of its last evaluation.
    shown = re.findall(
        r"^input      (.*)\ntrue       (.*)\npredicted  (.*)$", printed, re.MULTILINE
    )
    assert [tuple(sample.values()) for sample in found[-1][1]] == shown
    assert [sample["true"] for sample in found[0][1]] == [true for _, true, _ in shown]


def test_a_tracker_that_fails_warns_once(folder: Path, printed: str) -> None:
    warnings = sorted(line for line in printed.splitlines() if line.startswith("warning"))
    assert len(warnings) == 3
    for number, warning in enumerate(warnings, 2):
        assert f"the tracker own_tracker.Log {number} failed" in warning
        assert "ConnectionError: no network; the run continues" in warning
    everything = [call[0] for call in calls(folder / "whole.log")]
    for method in ("metrics", "end"):
        assert [call[0] for call in calls(folder / f"{method}.log")] == everything
    assert [call[0] for call in calls(folder / "start.log")] == ["start"]


@pytest.mark.slow
def test_a_resumed_run_continues_in_its_tracker(
    folder: Path, command: list[str], printed: str
) -> None:
    parts = [text for text in command if not text.startswith("trackers=")]
    tracker = "trackers=@own_tracker.Log(path='parts.log')"
    run([*parts, "model_dir=parts", tracker, "train_steps=2", "num_samples=0"], folder)
    run(["--from", "parts", "--set", "train_steps=4"], folder)
    found = calls(folder / "parts.log")
    assert [call[1:3] for call in found if call[0] == "start"] == [[None, 0], ["id-1", 2]]
    assert json.loads((folder / "parts/trackers.json").read_text()) == {"own_tracker.Log": "id-1+"}
    assert without_timing(sent(found)) == without_timing(sent(calls(folder / "whole.log")))


@pytest.mark.slow
def test_a_run_that_fails_tells_its_tracker(folder: Path) -> None:
    command = arguments(
        "text.txt",
        train_steps=9,
        model_dir="diverges",
        trackers="@own_tracker.Log(path='diverges.log')",
    )
    rate = "optimizer.learning_rate.base_learning_rate=1e30"
    run([*command, rate], folder, status=1)
    name, how, reason = calls(folder / "diverges.log")[-1]
    assert (name, how) == ("end", "failed")
    assert reason.startswith("RunError: step")
    end = json.loads((folder / "diverges" / "end.json").read_text())
    assert (end["how"], end["reason"]) == (how, reason)


@pytest.mark.parametrize(
    ("trackers", "message"),
    [
        ("@own_tracker.Log(path='x', fails='check')", "my tracker needs a key"),
        ("@own_tracker.Log", r"trackers.path \(str\)"),
        ("@own_tracker.Lgo(path='x')", "Did you mean own_tracker.Log"),
        ("[@own_tracker.Lgo(path='x')]", "Did you mean own_tracker.Log"),
        ("[@own_tracker.Log(path='x'), 3]", r"at \[1\]: expected Tracker, got int 3"),
        ("[@own_tracker.Log(path='x')", "not a list"),
        ("@mtf.training.TrainerConfig", "expected Tracker"),
        ("wandb", "expected Tracker"),
    ],
)
def test_mistakes(trackers: str, message: str, folder: Path) -> None:
    command = arguments("text.txt", train_steps=1, model_dir="none", trackers=trackers)
    printed = run(command, folder, status=2)
    assert re.search(message, printed), printed
    assert not (folder / "none").exists()


def test_t5x_refuses(folder: Path) -> None:
    command = arguments("text.txt", train_steps=1, trackers="@own_tracker.Log(path='x')")
    printed = run([*command, "--engine", "t5x"], folder, status=2)
    assert "trackers = @Log: T5X's training loop writes only to TensorBoard." in printed


class _Slow(Tracker):
    """Waits in its first call until it may go on."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.steps: list[int] = []

    def log_metrics(self, step: int, metrics: Any) -> None:
        self.may_go_on.wait(20)
        self.steps.append(step)


def test_nothing_waits_for_a_slow_tracker(tmp_path: Path) -> None:
    slow, warnings = _Slow(), []
    tracking = Tracking([slow], warnings.append, seconds_to_end=0.2)
    started = time.monotonic()
    tracking.start(tmp_path, TrackedRun(str(tmp_path), tmp_path.name, 0, {}))
    for step in range(100):
        tracking.log_metrics("train", step, {"loss": 1.0})
    tracking.log_samples(100, [Sample("in", "true", "predicted")])
    assert time.monotonic() - started < 2
    tracking.end(RunEnd("finished"))
    assert time.monotonic() - started < 4
    assert len(warnings) == 1 and "_Slow has not finished 0.2 s after" in warnings[0]
    slow.may_go_on.set()
    deadline = time.monotonic() + 10
    while len(slow.steps) < 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert slow.steps == list(range(100))


def test_tensorboard_shows_the_config(folder: Path, printed: str) -> None:
    (file,) = (folder / "whole" / "train").glob("events.out.tfevents.*")
    content = file.read_bytes()
    assert b"config/text_summary" in content
    for line in (folder / "whole" / "config.txt").read_text().splitlines():
        assert f"    {line}\n".encode() in content


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
