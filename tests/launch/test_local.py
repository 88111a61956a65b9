"""`mtf launch local` trains and evaluates in several processes, also on data of your own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from mtf.cli import status
from mtf.cli.launch import local
from mtf.cli.launch.command import main
from tests import small
from tests.launch import recorded, slow_data
from tests.small import SETTINGS


def start(arguments: list[str], cwd: Path) -> subprocess.Popen[str]:
    """Starts `python -m mtf launch …` in a session of its own, with its output in a pipe."""
    command = ("-m", "mtf", "launch", *arguments)
    return small.start_python(*command, cwd=cwd, stderr=subprocess.STDOUT, XLA_FLAGS="")


def ended(
    process: subprocess.Popen[str], seconds: float = 240, *, statuses: tuple[int, ...] = (0,)
) -> str:
    """Waits for the end of a process with one of these statuses; returns what was printed."""
    output = process.communicate(timeout=seconds)[0]
    assert process.returncode in statuses, output
    return output


def run(
    folder: Path, processes: int, devices: int, *command: str, statuses: tuple[int, ...] = (0,)
) -> str:
    """Runs a command in several processes to its end; returns what was printed."""
    options = ["local", "--processes", str(processes), "--devices-per-process", str(devices)]
    return ended(start([*options, "--", *command], folder), 1200, statuses=statuses)


def start_two(folder: Path, devices: int = 1, **settings: object) -> subprocess.Popen[str]:
    """Starts an endless run of two processes in the directory `run`."""
    options = ["local", "--processes", "2", "--devices-per-process", str(devices), "--"]
    values = {"train_steps": 100_000, "model_dir": "run", **settings}
    return start([*options, *small.arguments(small.write_text(folder), **values)], folder)


def kill(launcher: subprocess.Popen[str], index: int) -> str:
    """Kills one of a launcher's processes, which must end the others; returns what was printed."""
    os.kill(pid_of(launcher.pid, index), signal.SIGKILL)
    killed = time.monotonic()
    output = launcher.communicate(timeout=120)[0]
    assert time.monotonic() - killed < 60
    assert launcher.returncode == 137
    assert re.search(rf"error: {died(index)}", output)
    return output


def died(index: int) -> str:
    return rf"Process {index} \(host .*, process id \d+\) died\."


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait for its parent to notice."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def losses(run_dir: Path) -> list[float]:
    lines = (run_dir / "train" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_dry_run_prints_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--", "recipes.pretrain_text", "--set", "data.files=two words.txt"]
    options = ["--processes", "2", "--devices-per-process", "4", "--dry-run"]
    assert main(["local", *options, *command]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for index, line in enumerate(lines):
        assert f"MTF_PROCESS_COUNT=2 MTF_PROCESS_INDEX={index}" in line
        assert "JAX_NUM_CPU_DEVICES=4" in line
        assert "-m mtf.run recipes.pretrain_text --set 'data.files=two words.txt'" in line
    assert len({line.split()[0] for line in lines}) == 1, "both have the same address"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["local", "--processes", "2"], "No recipe was given. Pass a recipe after --"),
        (
            ["local", "--processes", "0", "--", "recipes.pretrain_text"],
            "--processes is 0; expected",
        ),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_process_fails_while_process_0_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "_SECONDS_TO_END", 0)
    processes = [subprocess.Popen([*each], text=True) for each in (("sleep", "60"), ("false",))]
    assert local._wait(processes, local._Forwarded()) == 1
    assert processes[0].returncode == -signal.SIGKILL
    assert capsys.readouterr().err == "mtf launch: process 1 of 2 ended with status 1\n"


@pytest.mark.slow
def test_the_new_run_directory_is_one(tmp_path: Path) -> None:
    settings = {"train_steps": 2, "trainer.profile": 2}
    output = run(tmp_path, 2, 1, *small.arguments(small.write_text(tmp_path), **settings))
    run_dirs = list((tmp_path / "runs").iterdir())
    assert len(run_dirs) == 1
    assert "mtf.run recipes.pretrain_text" in (run_dirs[0] / "overrides.txt").read_text()
    assert len(losses(run_dirs[0])) == 2
    # Only the first process reports.
    assert len(re.findall(r"^run directory", output, re.MULTILINE)) == 1
    (trace,) = (run_dirs[0] / "profile" / "plugins" / "profile").iterdir()
    ends = ("memory.pprof", "trace.json.gz", "xplane.pb")
    assert {file.name for file in trace.iterdir()} == {
        f"process_{index}.{end}" for index in (0, 1) for end in ends
    }


@pytest.mark.slow
def test_inference_gives_the_predictions_of_one_process(tmp_path: Path) -> None:
    text = small.write_text(tmp_path)
    small.run(small.arguments(text, train_steps=2, model_dir=tmp_path / "run"), tmp_path)
    (tmp_path / "in.txt").write_text("".join(text.read_text().splitlines(keepends=True)[:5]))
    found = []
    for processes in (1, 2):
        recipe = "recipes.infer(checkpoint='run', files='in.txt', batch_size=4)"
        run(tmp_path, processes, processes, recipe, "--set", f"output_dir=with-{processes}")
        files = list((tmp_path / f"with-{processes}").rglob("*.jsonl*"))
        found.append([line for file in files for line in file.read_text().splitlines()])
    assert len(found[0]) == 5
    assert found[1] == found[0]


@pytest.mark.slow
def test_the_processes_end_with_a_killed_launcher(tmp_path: Path) -> None:
    process = start_two(tmp_path)
    small.read_until(process.stdout, "step 25/")
    workers = [pid_of(process.pid, index) for index in (0, 1)]
    process.kill()
    process.communicate(timeout=60)  # Until the workers, too, have closed the pipe.
    assert not any(map(is_running, workers))
    (step,) = small.steps(tmp_path / "run")
    assert step >= 25
    # The directory is free.
    small.run(["--from", "run", "--set", f"train_steps={step + 1}"], tmp_path)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_the_processes_before_the_launcher(tmp_path: Path) -> None:
    process = start_two(tmp_path)
    small.read_until(process.stdout, "step 5/")
    workers = [pid_of(process.pid, index) for index in (0, 1)]
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    for worker in workers:
        os.kill(worker, signal.SIGCONT)
    process.communicate(timeout=60)
    assert process.returncode in (0, 130)  # A process may notice both at once.
    assert not any(map(is_running, workers))


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_one_process_is_killed(tmp_path: Path, killed: int) -> None:
    process = start_two(tmp_path, 2, **{"checkpoint.save.period": 10})
    small.read_until(process.stdout, "step 25/")
    output = kill(process, killed)
    assert f"mtf launch: process {killed} of 2 was ended by SIGKILL" in output
    found = status.read_status(tmp_path / "run")
    assert found.state == "failed"
    assert re.fullmatch(died(killed), str(found.reason))
    conditions = {each["index"]: each["condition"] for each in found.processes}
    assert conditions == {killed: "dead", 1 - killed: "ended"}

    steps = small.steps(tmp_path / "run")[-1] + 5
    process = start_two(tmp_path, 2, **{"checkpoint.save.period": 10, "train_steps": steps})
    output = ended(process)
    assert f"resuming from step {steps - 5}" in output


@pytest.mark.slow
@pytest.mark.parametrize("to_one", [False, True])
def test_sigterm_saves_once(tmp_path: Path, to_one: bool) -> None:
    """It goes to the launcher, or to one process as before its host is taken away."""
    process = start_two(tmp_path)
    small.read_until(process.stdout, "step 3/")
    os.kill(pid_of(process.pid, 1) if to_one else process.pid, signal.SIGTERM)
    output = ended(process, 120)
    (saved,) = re.findall(r"saved step (\d+)", output)
    assert small.steps(tmp_path / "run")[-1] == int(saved)
    assert ("another process's signal: saved step" in output) == to_one


def pid_of(launcher: int, index: int) -> int:
    """Returns the id of one of a launcher's processes, from Linux's table of processes."""
    variable = f"MTF_PROCESS_INDEX={index}\0"
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == launcher and variable in (entry / "environ").read_text():
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError(f"process {index} of {launcher} is not there")


ANSWERS = ("red", "green", "blue")


def evaluate(
    folder: Path,
    processes: int,
    output: str,
    recipe: str = "recipes.evaluate(checkpoint='run')",
    *more: str,
) -> subprocess.Popen[str]:
    """Starts the evaluation of a run on a file."""
    fields = "files={'validation': 'test.tsv'}, inputs='inputs', targets='targets'"
    data = f"data=@mtf.builders.data.files({fields}, metrics=('rouge', 'squad'))"
    lengths = ("data.task_feature_lengths.inputs=32", "data.task_feature_lengths.targets=8")
    options = ["--processes", str(processes), "--devices-per-process", str(4 // processes)]
    name = "data.mixture_or_task_name=mine"
    settings = [data, name, *lengths, "batch_size=4", f"output_dir={output}", *more]
    return start(["local", *options, "--", recipe, "--set", *settings], folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny run and of a file to evaluate it on."""
    folder = tmp_path_factory.mktemp("evaluation")
    command = small.arguments(small.write_text(folder), train_steps=3, model_dir="run")
    small.run_process(command, folder)
    rows = [f"{i} apples\t{ANSWERS[i % 3]}" for i in range(30)]
    (folder / "test.tsv").write_text("inputs\ttargets\n" + "\n".join(rows) + "\n")
    return folder


@pytest.mark.slow
def test_two_processes_give_the_results_of_one(folder: Path) -> None:
    found = []
    for processes in (1, 2):
        process = evaluate(folder, processes, f"with-{processes}")
        ended(process)
        results = json.loads((folder / f"with-{processes}" / "results.json").read_text())
        files = sorted((folder / f"with-{processes}").rglob("*.jsonl*"))
        found.append((results["tasks"], [file.read_text() for file in files]))
    assert found[0] == found[1]
    assert 30 in [text.count("\n") for text in found[0][1]]
    found_status = status.read_status(folder / "with-2")
    assert (found_status.state, found_status.trains) == ("finished", False)
    conditions = [(each["index"], each["condition"]) for each in found_status.processes]
    assert conditions == [(0, "ended"), (1, "ended")]


WAITS = f"{slow_data.__file__}:evaluation_waits_forever(process=1)"


@pytest.mark.slow
def test_a_process_that_hangs(folder: Path) -> None:
    process = evaluate(folder, 2, "hangs", WAITS, "hang_seconds=10")
    small.read_until(process.stdout, "run/checkpoints/checkpoint_3: ")
    started = time.monotonic()
    output = process.communicate(timeout=120)[0]
    assert 8 < time.monotonic() - started < 60
    assert process.returncode == 1, output
    said = "failed: no progress for 10 s (reading data; hang_seconds is 10). Its output contains"
    assert re.search(rf"error: Process 1 \(host .*\) {re.escape(said)}", output)
    assert "slow_data.py" in output
    found = status.read_status(folder / "hangs")
    assert found.state == "failed"
    assert said in str(found.reason)


@pytest.mark.slow
def test_a_process_that_dies(folder: Path) -> None:
    process = evaluate(folder, 2, "dies", WAITS)
    small.read_until(process.stdout, "run/checkpoints/checkpoint_3: ")
    while not (folder / "dies" / "processes" / "1.json").is_file():
        time.sleep(0.1)
    found = status.read_status(folder / "dies")
    assert found.state == "running"
    assert [each["condition"] for each in found.processes] == ["running", "running"]
    kill(process, 1)
    found = status.read_status(folder / "dies")
    assert found.state == "failed"
    assert re.fullmatch(died(1), str(found.reason))
    # What was written is used, and the results are those of an evaluation that was not killed.
    process = evaluate(folder, 2, "dies")
    ended(process)
    assert status.read_status(folder / "dies").state == "finished"


RECIPES = Path(recorded.__file__)


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


@pytest.mark.slow
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


@pytest.mark.slow
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


def launch_own(
    cwd: Path, processes: int, devices: int, to: str, steps: int, *more: str, refused: bool = False
) -> str:
    """Trains in several processes, up to a step; returns what was printed."""
    own = {name: each for name, each in SETTINGS.items() if not name.startswith("data.")}
    own |= {
        # Each process has its own rows of a batch, so the order of rows depends on their number.
        "model.network.dropout_rate": 0.0,
        "checkpoint.save.period": 3,
        "model_dir": to,
        "train_steps": steps,
    }
    command = [
        "recipes.pretrain_text",
        "--set",
        *(f"{n}={value}" for n, value in own.items()),
        *more,
    ]
    # All processes refuse. The status of one that first hears of another's refusal is 1.
    return run(cwd, processes, devices, *command, statuses=(1, 2) if refused else (0,))


def data(function: str) -> str:
    return (
        f"data=@mtf.data.CustomDataConfig(train=@parts.{function}, pack=False, "
        "vocabulary=@mtf.data.ByteVocabulary(extra_ids=125), "
        "task_feature_lengths={'inputs': 16, 'targets': 8})"
    )


@pytest.mark.slow
def test_losses_and_a_resume(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    launch_own(tmp_path, 1, 4, "one", 6, data("dataset"))
    launch_own(tmp_path, 2, 2, "two", 6, data("dataset"))
    expected, found = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(set(expected)) == 6
    np.testing.assert_allclose(found, expected, rtol=1e-5)

    launch_own(tmp_path, 2, 2, "parts", 3, data("dataset"))
    # With another number of processes, nobody knows where the new parts would have to go on.
    refused = launch_own(tmp_path, 1, 4, "parts", 6, data("dataset"), refused=True)
    assert re.search(r"error: .*in 2 parts, but now there are 1\. Resume with as many", refused)
    refused = launch_own(tmp_path, 4, 1, "parts", 6, data("dataset"), refused=True)
    assert "in 2 parts, but now there are 4. Resume with as many processes as before" in refused
    assert len(losses(tmp_path / "parts")) == 3

    assert "resuming from step 3" in launch_own(tmp_path, 2, 2, "parts", 6, data("dataset"))
    assert losses(tmp_path / "parts") == found


@pytest.mark.slow
def test_processes_that_share_the_rows_of_a_batch_read_the_same(tmp_path: Path) -> None:
    """The model is split over both processes, so there is one part, whatever their number."""
    (tmp_path / "parts.py").write_text(PARTS)
    split = [data("numbers"), "partitioner.num_partitions=4"]
    launch_own(tmp_path, 1, 4, "one", 6, *split)
    said = launch_own(tmp_path, 2, 2, "parts", 3, *split)
    assert said.count("part 0 of 1") == 2
    assert "resuming from step 3" in launch_own(tmp_path, 1, 4, "parts", 6, *split)
    np.testing.assert_allclose(losses(tmp_path / "parts"), losses(tmp_path / "one"), rtol=1e-5)
