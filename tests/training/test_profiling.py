"""Profiler traces of chosen steps."""

from __future__ import annotations

import gzip
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.training.settings import TrainerConfig
from tests import small
from tests.training.test_not_finite import Batches, make_trainer, train


def read_events(trace: Path) -> list[dict[str, Any]]:
    """The events of a trace for Perfetto."""
    return json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def traced_steps(trace: Path) -> list[int]:
    """The numbers of the training steps in a trace for Perfetto."""
    steps = [event for event in read_events(trace) if event.get("name") == "train"]
    return sorted(int(event["args"]["step_num"]) for event in steps)


def traces(run_dir: Path) -> dict[str, list[int]]:
    """Maps the folder of each trace to the steps in it."""
    folder = run_dir / "profile" / "plugins" / "profile"
    found = {}
    for trace in sorted(folder.iterdir()):
        names = {file.name for file in trace.iterdir()}
        ends = ("memory.pprof", "trace.json.gz", "xplane.pb")
        assert names == {f"process_0.{end}" for end in ends}
        assert all((trace / name).stat().st_size for name in names)
        found[trace.name] = traced_steps(trace / "process_0.trace.json.gz")
    return found


def test_consecutive_steps_are_in_one_trace(tmp_path: Path) -> None:
    train(make_trainer(profile="3:5", eval_period=4), tmp_path, train_steps=6)
    assert traces(tmp_path) == {"step_3": [3, 4, 5]}
    (trace,) = tmp_path.rglob("process_0.trace.json.gz")
    names = {event.get("name") for event in read_events(trace)}
    assert names >= {"read a batch", "transfer the batch", "wait for the previous step"}
    assert names >= {"evaluate", "checkpoint"}  # after step 4


@pytest.mark.parametrize("profile", ["2:6:4", "2::4"])
def test_a_period_writes_a_trace_each_time(tmp_path: Path, profile: str) -> None:
    train(make_trainer(profile=profile, eval_period=None), tmp_path, train_steps=6)
    assert traces(tmp_path) == {"step_2": [2], "step_6": [6]}


def test_a_signal_starts_a_trace(tmp_path: Path) -> None:
    class Signals(Batches):
        """The third batch comes with a signal."""

        number = 0

        def __next__(self) -> dict[str, Any]:
            self.number += 1
            if self.number == 3:
                os.kill(os.getpid(), signal.SIGUSR1)
            return super().__next__()

    trainer = make_trainer(profile="SIGUSR1", eval_period=None)
    train(trainer, tmp_path, train_steps=8, batches=Signals())
    assert traces(tmp_path) == {"step_4": [4, 5, 6]}
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_a_run_that_ends_within_a_trace_writes_it(tmp_path: Path) -> None:
    train(make_trainer(profile="3:9", eval_period=None), tmp_path, train_steps=4)
    assert traces(tmp_path) == {"step_3": [3, 4]}


@pytest.mark.parametrize(
    ("profile", "message"),
    [("10-20", "must be 'all', 'FIRST:LAST'"), ("10:", "one trace of more than 1,000 steps")],
)
def test_a_choice_that_is_refused(profile: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainerConfig(profile=profile)


def test_a_resumed_run_may_be_profiled(tmp_path: Path) -> None:
    text = small.write_text(tmp_path)
    losses = {}
    for name, profile in (("plain", "None"), ("traced", "3")):
        small.run(small.arguments(text, model_dir=name, train_steps=2), tmp_path)
        options = ["--set", "train_steps=4", f"trainer.profile={profile}"]
        said = small.run(["--from", name, *options], tmp_path)
        assert ("tensorboard --logdir traced/profile" in said) == (name == "traced")
        losses[name] = [line["loss"] for line in small.read_metrics(tmp_path / name)]
    assert traces(tmp_path / "traced") == {"step_3": [3]}
    assert losses["plain"] == losses["traced"]
