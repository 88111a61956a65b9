"""Data of the user's own over several processes: the losses of one process, and an exact resume."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.launch.test_local import losses, start
from tests.small import SETTINGS

# A user's file: the same numbers in the same order, as a Grain dataset and as a class.
PARTS = """
import grain

ORDER = [number * 389 % 1000 for number in range(1000)]


def reverse(number):
    return {"inputs": f"number {number}", "targets": f"{number}"[::-1]}


def dataset(shard_index, shard_count):
    numbers = grain.MapDataset.source(ORDER)[shard_index::shard_count]
    return numbers.repeat().map(reverse)


class Numbers:
    def __init__(self, shard_index: int, shard_count: int):
        print(f"part {shard_index} of {shard_count}", flush=True)
        self.at, self.shard_count = shard_index, shard_count

    def __iter__(self):
        return self

    def __next__(self):
        number = ORDER[self.at % 1000]
        self.at += self.shard_count
        return reverse(number)

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


def numbers(shard_index, shard_count):
    return Numbers(shard_index, shard_count)
"""


def launch(
    cwd: Path, processes: int, devices: int, run: str, steps: int, *more: str, refused: bool = False
) -> str:
    """Trains in several processes, up to a step; returns what was printed."""
    own = {name: each for name, each in SETTINGS.items() if not name.startswith("data.")}
    own |= {
        # Each process has its own rows of a batch, so the order of rows depends on their number.
        "model.network.dropout_rate": 0.0,
        "checkpoint.save.period": 3,
        "model_dir": run,
        "train_steps": steps,
    }
    options = ["--processes", str(processes), "--devices-per-process", str(devices)]
    settings = [*(f"{name}={value}" for name, value in own.items()), *more]
    process = start(["local", *options, "--", "recipes.quickstart", "--set", *settings], cwd)
    output = process.communicate(timeout=280)[0]
    # All processes refuse. The status of one that first hears of another's refusal is 1.
    assert process.returncode in ((1, 2) if refused else (0,)), output
    return output


def data(function: str) -> str:
    return (
        f"data=@mtf.data.CustomDataConfig(train=@parts.{function}, pack=False, "
        "vocabulary=@mtf.data.ByteVocabulary(extra_ids=125), "
        "task_feature_lengths={'inputs': 16, 'targets': 8})"
    )


@pytest.mark.slow
def test_losses_and_a_resume(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    launch(tmp_path, 1, 4, "one", 6, data("dataset"))
    launch(tmp_path, 2, 2, "two", 6, data("dataset"))
    expected, found = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(set(expected)) == 6
    np.testing.assert_allclose(found, expected, rtol=1e-5)

    launch(tmp_path, 2, 2, "parts", 3, data("dataset"))
    # With another number of processes, nobody knows where the new parts would have to go on.
    refused = launch(tmp_path, 1, 4, "parts", 6, data("dataset"), refused=True)
    assert re.search(r"error: .*in 2 parts, but now there are 1\. Resume with as many", refused)
    refused = launch(tmp_path, 4, 1, "parts", 6, data("dataset"), refused=True)
    assert "in 2 parts, but now there are 4. Resume with as many processes as before" in refused
    assert len(losses(tmp_path / "parts")) == 3

    assert "resuming from step 3" in launch(tmp_path, 2, 2, "parts", 6, data("dataset"))
    assert losses(tmp_path / "parts") == found


@pytest.mark.slow
def test_processes_that_share_the_rows_of_a_batch_read_the_same(tmp_path: Path) -> None:
    """The model is split over both processes, so there is one part, whatever their number."""
    (tmp_path / "parts.py").write_text(PARTS)
    split = [data("numbers"), "partitioner.num_partitions=4"]
    launch(tmp_path, 1, 4, "one", 6, *split)
    said = launch(tmp_path, 2, 2, "parts", 3, *split)
    assert said.count("part 0 of 1") == 2
    assert "resuming from step 3" in launch(tmp_path, 1, 4, "parts", 6, *split)
    np.testing.assert_allclose(losses(tmp_path / "parts"), losses(tmp_path / "one"), rtol=1e-5)
