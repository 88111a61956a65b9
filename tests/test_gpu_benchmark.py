"""benchmarks/gpu.py runs at a tiny size on CPUs, and what it says about limits and failures."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"

# Packages that mtf needs, but that machines with GPUs may lack.
ABSENT = ("fiddle", "grain", "array_record", "google_crc32c", "tensorboardX", "seqio", "tensorflow")

TINY = [
    *("--sizes", "tiny", "--no-compile", "--blocks", "2", "--calls", "2", "--minutes", "60"),
    *("--lengths", "32/16", "--most", "4", "--peers", "sdpa/float32/none"),
    *("--variants", "adamw/unrolled/none,adafactor/scanned/full", "--build-minutes", "20"),
    *("--decode-lengths", "16/8", "--decode-batches", "2"),
    *("--rank-lengths", "12/3", "--rank-batches", "4", "--examples", "8"),
    *("--attention-lengths", "32", "--attention-tokens", "64", "--heads", "2"),
]


def gpu(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the script where packages are absent, as they are on machines with GPUs."""
    (folder / "sitecustomize.py").write_text(
        f"import sys\nfor name in {ABSENT}: sys.modules[name] = None\n"
    )
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu.py"), *options],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_all_sections_run_on_cpus(tmp_path: Path) -> None:
    done = gpu(*TINY, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    measured = [row for row in rows if "failed" not in row]

    def of(section: str) -> list[dict[str, Any]]:
        return [row for row in measured if row["section"] == section]

    (together, alone) = of("train")
    assert (together["batch"], together["variant"]) == (4, "adamw/unrolled/none")
    for side in ("mtf", "torch"):
        figures = together[side]
        assert figures["tokens_per_second"] == pytest.approx(4 * 48 / figures["seconds"])
        assert len(figures["blocks"]) == 2
    assert together["mtf"]["loss"] == pytest.approx(6.7, abs=1)  # near log(512) = 6.2
    assert alone["variant"] == "adafactor/scanned/full"
    assert "torch" not in alone
    assert [row["peer"] for row in of("rank")] == ["once/none", "copies/none"]
    assert [(row["num_beams"], row["peer"]) for row in of("decode")] == [
        (1, "dynamic/none"),
        (4, "dynamic/none"),
    ]
    errors = [
        error
        for row in of("attention")
        for name in ("mtf", "xla")
        for error in row[name]["errors"].values()
    ]
    assert len(of("attention")) == 8
    assert 0 < max(errors) < 0.02  # bfloat16 beside float32
    failed = [row for row in rows if "failed" in row]
    assert {row.get("name") for row in failed} == {"cudnn"}
    for heading in ("train", "rank", "decode", "attention", "not measured"):
        assert f"\n{heading}\n" in done.stdout


def test_tables_show_ratios_and_mfu(tmp_path: Path) -> None:
    side = {"blocks": [], "compile": 20.4, "gib": 61.26}
    row = {
        "section": "train",
        "size": "base",
        "lengths": [512, 114],
        "batch": 64,
        "variant": "adamw/unrolled/none",
        "peer": "sdpa/float32/whole",
        "mtf": {**side, "seconds": 0.25, "tokens_per_second": 160256, "mfu": 0.254},
        "torch": {**side, "seconds": 0.5, "tokens_per_second": 80128, "mfu": 0.127},
    }
    failed = {"section": "train", "size": "xl", "lengths": [512, 114], "failed": "out of memory"}
    (tmp_path / "found.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(failed)}\n")
    done = gpu("--table", "found.jsonl", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        "| base | 512/114 | 64 | adamw/unrolled/none | sdpa/float32/whole | 0.250 / 0.500 "
        "| 160,256 / 80,128 | 25.4 / 12.7 | **0.500** | 61.3 / 61.3 | 20 / 20 |"
    ) in done.stdout
    assert "* train: size xl, lengths 512/114: out of memory" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "trian"], "unknown section trian; expected some of attention, train,"),
        (["--sizes", "huge", "--no-peer"], "unknown size huge; expected some of small, base,"),
    ],
)
def test_unknown_names_end_the_script(tmp_path: Path, options: list[str], message: str) -> None:
    done = gpu(*options, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "gpu.jsonl").exists()


WORKER = """
import sys, time
sys.path.insert(0, {benchmarks!r})
from gpu_workers import Side, serve

class Fake(Side):
    def wait(self, seconds):
        print("a library's message")
        time.sleep(seconds)
        return {{"waited": seconds}}

    def fill(self):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")

    def die(self):
        sys.exit(3)

serve(Fake)
"""


def test_workers_answer_fail_and_are_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from gpu_workers import Failed, OutOfTime, Worker

    script = tmp_path / "fake.py"
    script.write_text(WORKER.format(benchmarks=str(BENCHMARKS)))
    with Worker(script, {}, time.monotonic() + 1000) as worker:
        assert worker.ask("wait", seconds=0) == {"waited": 0}
        with pytest.raises(Failed, match="RESOURCE_EXHAUSTED") as failed:
            worker.ask("fill")
        assert failed.value.memory
        with pytest.raises(Failed, match="exit status 3") as failed:
            worker.ask("die")
        assert not failed.value.memory
        with pytest.raises(Failed, match="took more than 1 s"):
            worker.ask("wait", seconds=1000, limit=1)
        assert worker.ask("wait", seconds=0) == {"waited": 0}
    with Worker(script, {}, time.monotonic() + 1) as worker, pytest.raises(OutOfTime):
        worker.ask("wait", seconds=1000)
