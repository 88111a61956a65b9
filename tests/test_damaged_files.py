"""Damaged small files: one message that says what to do, and no traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtf.base import run_end
from mtf.base.errors import UserError
from mtf.base.processes import records
from mtf.base.strict_json import loads, read_lines
from mtf.base.writing import lock_holder
from mtf.cli import status
from mtf.cli.run import main
from mtf.data.cache.format import CacheInfo, read_json
from mtf.data.sources.files import open_files
from mtf.evaluation import report
from mtf.jobs.results import train_result
from tests import small

DEEP = b"[" * 200_000 + b"]" * 200_000
ADVICE = "Delete this checkpoint to resume from the previous one."


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("whole")
    text = small.write_text(folder)
    settings = {"train_steps": 4, "checkpoint.save.period": 2, "checkpoint.save.keep": None}
    assert main(small.arguments(text, **settings, model_dir=folder / "run")) == 0
    return folder / "run"


@pytest.mark.parametrize(
    "content", [DEEP, b"", b'{"a": ', b"\xff\xfe"], ids=["deep", "empty", "cut", "bytes"]
)
@pytest.mark.parametrize("file", ["metrics/metrics", "data/metadata"])
def test_a_damaged_checkpoint_of_a_run_can_be_deleted(
    whole: Path, file: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = shutil.copytree(whole, tmp_path / "run")
    latest = run_dir / "checkpoints" / "checkpoint_4"
    assert (latest / file).is_file()
    (latest / file).write_bytes(content)
    assert_advises(run_dir, str(latest), capsys)


@pytest.mark.parametrize("damage", ["flipped", "not decodable", "missing"])
def test_damaged_arrays(
    whole: Path, damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = shutil.copytree(whole, tmp_path / "run")
    latest = run_dir / "checkpoints" / "checkpoint_4"
    if damage == "missing":
        (latest / "state" / "manifest.ocdbt").unlink()
        said = f"{latest} is incomplete: state/manifest.ocdbt is missing. If it is a copy"
    else:
        file = small.flip_a_bit(latest / "state")
        said = f"{file} is damaged"
    if damage == "not decodable":
        magic = b"\x28\xb5\x2f\xfd"  # the beginning of a part that is compressed with Zstandard
        content = file.read_bytes()
        assert content.count(magic) > 1
        file.write_bytes(content.replace(magic, bytes(4)))
    assert_advises(run_dir, said, capsys)


def assert_advises(run_dir: Path, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    latest = run_dir / "checkpoints" / "checkpoint_4"
    again = ["--from", str(run_dir), "--set", "train_steps=5"]
    before = sorted(run_dir.rglob("*"))
    capsys.readouterr()
    assert main(again) == 2
    error = capsys.readouterr().err
    messages = [line for line in error.splitlines() if line.startswith("error: ")]
    assert len(messages) == 1 and said in messages[0] and ADVICE in error, error
    assert "Traceback" not in error
    assert sorted(run_dir.rglob("*")) == before
    shutil.rmtree(latest)
    assert main([*again, "--dry-run"]) == 0


def _read(function: Callable[[Path], Any], content: bytes) -> Callable[[Path], Any]:
    def call(file: Path) -> Any:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return function(file)

    return call


@pytest.mark.parametrize("content", [DEEP, b"null", b"\xff"], ids=["deep", "null", "bytes"])
def test_files_of_a_run_are_refused_or_ignored(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cache\.json is damaged; expected a JSON file"):
        _read(lambda file: read_json(file, CacheInfo), content)(tmp_path / "cache.json")
    with pytest.raises(UserError, match=r"results\.json is damaged: .* to evaluate again"):
        _read(lambda file: report.read(file.parent), content)(tmp_path / "results.json")
    assert _read(lock_holder, content)(tmp_path / ".lock") == {}
    assert _read(lambda file: run_end.read_end(tmp_path), content)(tmp_path / "end.json") is None
    file = tmp_path / records.FOLDER / "0.json"
    assert _read(lambda _: records.read_states(tmp_path), content)(file) == []
    lines = b'{"step": 1, "loss": 2.0}\n' + content
    file = tmp_path / "train" / "metrics.jsonl"
    assert _read(read_lines, lines)(file) == [{"step": 1, "loss": 2.0}]
    assert train_result(tmp_path, 1).metrics == {"train/loss": 2.0}


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_data_that_is_nested_too_deeply(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"data{suffix}"
    file.write_bytes(DEEP)
    with pytest.raises(UserError, match="it is nested too deeply"):
        list(open_files(str(file)))
    with pytest.raises(ValueError, match="it is nested too deeply"):
        loads(DEEP)


def test_a_damaged_page_of_parquet(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "data.parquet"
    texts = [f"{i} some text" for i in range(3000)]
    pq.write_table(pa.table({"text": texts}), file, compression="zstd")
    content = bytearray(file.read_bytes())
    content[2000:2200] = bytes(200)
    file.write_bytes(content)
    rows = open_files(str(file))
    assert len(rows) == 3000  # The metadata is at the end.
    with pytest.raises(UserError, match=f"{file} is damaged: "):
        list(rows)


def test_status_of_damaged_runs(tmp_path: Path) -> None:
    """Each file is replaced by values of other types and by bytes; the others are intact."""
    run = tmp_path / "run"
    values: dict[str, Any] = {
        "train/metrics.jsonl": {"step": 200, "accuracy": 0.5, "timing/steps_per_second": 4.0},
        "inference_eval/b/metrics.jsonl": {"step": 200, "bleu": 2.0},
        "checkpoints/checkpoint_200/_CHECKPOINT_METADATA": {"commit_timestamp_nsecs": 1e18},
        "checkpoints/checkpoint_200/metrics/metrics": {"owed/training_eval": 1.0},
        ".lock": {"host": os.uname().nodename, "pid": 999_999, "since": "2027", "command": "c"},
        "end.json": {"how": "failed", "reason": "x", "time": 1e9},
        "processes/0.json": {
            **{"index": 0, "count": 1, "host": "h", "pid": 3, "phase": "training", "step": 3},
            **{"progress": 1e9, "time": 1e9, "period": 10.0, "ended": False},
        },
    }
    contents = {name: json.dumps(value).encode() + b"\n" for name, value in values.items()}
    contents["config.txt"] = b"train_steps = 300\ncheckpoint.restore.step = 100\n"
    contents["config.json"] = b"{}"
    for name, content in contents.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)
    outcomes = []
    for number in range(200):
        rng = random.Random(number)
        name = rng.choice([*contents])
        damaged = rng.choice([DEEP, b"null", b"[1]", b"3", rng.randbytes(40), b"\xff" + DEEP])
        if name in values and number % 2:
            key = rng.choice([*values[name]])
            wrong = {**values[name], key: rng.choice([None, "x", [1], {}, -1, 1e400])}
            damaged = json.dumps(wrong).encode() + b"\n"
        (run / name).write_bytes(damaged)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            outcomes.append(status.main([str(run), "--json"]))
        assert outcomes[-1] in (0, 2), (name, damaged[:80])
        assert (outcomes[-1] == 2) == err.getvalue().startswith(f"error: {run}"), err.getvalue()
        (run / name).write_bytes(contents[name])
    assert 20 < outcomes.count(2) < 180
