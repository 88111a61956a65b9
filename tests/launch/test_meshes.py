"""Several processes train as one does: on every mesh, and after a restart with other numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests import small
from tests.launch import recorded
from tests.launch.test_local import kill, losses, start

pytestmark = pytest.mark.slow
RECIPES = Path(recorded.__file__)


def run(folder: Path, processes: int, devices: int, *command: str) -> str:
    """Runs a command in several processes to its end; returns what was printed."""
    options = ["local", "--processes", str(processes), "--devices-per-process", str(devices)]
    process = start([*options, "--", *command], folder)
    output = process.communicate(timeout=1200)[0]
    assert process.returncode == 0, output
    return output


def assert_same_batch(ours: Path, expected: Path, step: int) -> None:
    found, wanted = recorded.read(ours, step), recorded.read(expected, step)
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=f"{name}, step {step}")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of one process on one device; its steps are 0 to 2."""
    folder = tmp_path_factory.mktemp("one")
    text = small.write_text(folder)
    run(folder, 1, 1, f"{RECIPES}:meshes(text='{text}', names=('data',))")
    return folder


@pytest.mark.parametrize("processes", [2, 4])
def test_every_mesh_gives_the_losses_of_one_process(
    tmp_path: Path, one: Path, processes: int
) -> None:
    run(tmp_path, processes, 2, f"{RECIPES}:meshes(text='{one / 'text.txt'}')")
    expected = losses(one / "data")
    assert len(set(expected)) == 3
    for name in recorded.MESHES:
        ours = losses(tmp_path / name)
        np.testing.assert_allclose(ours, expected, rtol=1e-5, err_msg=name)
        for step in range(3):
            assert_same_batch(tmp_path / f"{name}-batches", one / "data-batches", step)


def test_a_restart_reads_the_same_batches(tmp_path: Path) -> None:
    text = small.write_text(tmp_path)
    settings = {"model_dir": "run", "checkpoint.save.period": 4, "partitioner.fsdp": 2}

    def command(first_step: int, folder: str, train_steps: int) -> list[str]:
        options = small.arguments(text, train_steps=train_steps, **settings)[1:]
        recipe = f"{RECIPES}:from_step(first_step={first_step}, folder='{folder}')"
        return [recipe, *options]

    options = ["local", "--processes", "2", "--devices-per-process", "2", "--"]
    process = start([*options, *command(0, "before", 100_000)], tmp_path)
    small.read_until(process.stdout, "step 6/")
    kill(process, 1)

    saved = small.steps(tmp_path / "run")[-1]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    last = saved + 3
    expected: list[float] = []
    for processes, devices in ((1, 4), (2, 2), (4, 1)):
        shutil.rmtree(tmp_path / "run")
        shutil.copytree(tmp_path / "copy", tmp_path / "run")
        batches = f"with-{processes}"
        output = run(tmp_path, processes, devices, *command(saved, batches, last))
        assert f"resuming from step {saved}" in output
        ours = losses(tmp_path / "run")
        assert len(ours) == last
        expected = expected or ours
        np.testing.assert_allclose(ours, expected, rtol=1e-5)
        for step in range(saved, last):
            assert_same_batch(tmp_path / batches, tmp_path / "with-1", step)
    # One process from the start reads these batches, too.
    settings["model_dir"] = "uninterrupted"
    run(tmp_path, 1, 4, *command(0, "uninterrupted-batches", last))
    np.testing.assert_allclose(losses(tmp_path / "uninterrupted"), expected, rtol=1e-5)
    for step in range(last):
        folder = "before" if step < saved else "with-4"
        assert_same_batch(tmp_path / folder, tmp_path / "uninterrupted-batches", step)
