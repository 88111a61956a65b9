"""Locks of directories, and what a command says when it cannot write."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from mtf.base.errors import UserError
from mtf.base.writing import LOCK_FILE, free_space, locked, write_failure
from mtf.checkpoints.manager import CheckpointManager, remove_unfinished
from mtf.checkpoints.settings import SaveCheckpointConfig
from mtf.cli import cache as cache_command
from mtf.cli import run as run_command
from mtf.data.cache import build
from mtf.training.train_state import TrainState
from tests import small
from tests.cache.helpers import mixture, settings
from tests.stress import disk_full

SMALL = "tests.config.example.small"
HOLD = """
import sys, time
from pathlib import Path
from mtf.base.writing import locked
with locked(Path(sys.argv[1]), "model_dir"):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that holds the lock of a folder."""
    process = small.start_python("-c", HOLD, str(folder))
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A small file system; the test is skipped where it cannot be mounted."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(disk_full.mounted(folder, options))
        except disk_full.CannotMountError as error:
            pytest.skip(f"a tmpfs cannot be mounted: {error}")
        yield


def test_second_run_is_refused_and_told_who_holds_the_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command.main([SMALL, "--set", "model_dir=runs/one"]) == 0
    before = small.contents(tmp_path, LOCK_FILE)
    with holder(tmp_path / "runs/one") as process:
        try:
            for arguments in (["--from", "runs/one"], [SMALL, "--set", "model_dir=runs/one"]):
                capsys.readouterr()
                assert run_command.main([*arguments, "--set", "train_steps=200"]) == 2
                said = capsys.readouterr().err
                assert said.startswith(
                    "error: model_dir: runs/one is in use by process "
                    f"{process.pid} on {socket.gethostname()}, since 20"
                )
                assert "-c" in said  # its command
            assert small.contents(tmp_path, LOCK_FILE) == before
            # Looking is not writing.
            assert run_command.main(["--from", "runs/one", "--print", "flat"]) == 0
            assert run_command.main(["--from", "runs/one", "--dry-run"]) == 0
        finally:
            process.kill()
    # The file is still there, and means nothing.
    assert (tmp_path / "runs/one" / LOCK_FILE).is_file()
    assert run_command.main(["--from", "runs/one", "--set", "train_steps=200"]) == 0
    assert not (tmp_path / "runs/one" / LOCK_FILE).exists()


def test_second_cache_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with holder(tmp_path / "cache") as process:
        try:
            arguments = ["t0_train", "--output", str(tmp_path / "cache"), "--vocabulary", "byt5"]
            assert cache_command.main(arguments) == 2
        finally:
            process.kill()
    said = capsys.readouterr().err
    assert f"--output: {tmp_path}/cache is in use by process {process.pid} on" in said


def test_lock_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    with locked(folder, "model_dir"):
        assert folder.is_dir()
        refused = pytest.raises(UserError, match=rf"in use by process {os.getpid()} on")
        with refused, locked(folder, "model_dir"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_stale_lock_is_no_obstacle(tmp_path: Path) -> None:
    for left in ("", "not JSON", json.dumps({"host": socket.gethostname(), "pid": os.getppid()})):
        (tmp_path / LOCK_FILE).write_text(left)
        with locked(tmp_path, "model_dir"):
            pass


def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that the file names is looked for."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with subprocess.Popen(["sleep", "60"]) as process:
        there: dict[str, Any] = {"host": socket.gethostname(), "pid": process.pid}
        there |= {"since": "2026-01-01 00:00:00", "command": "sleep 60"}
        (tmp_path / LOCK_FILE).write_text(json.dumps(there))
        try:
            with pytest.raises(UserError, match=r"\(sleep 60\)"), locked(tmp_path, "model_dir"):
                pass
        finally:
            process.kill()
    with locked(tmp_path, "model_dir"):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    (tmp_path / LOCK_FILE).write_text(json.dumps({**there, "host": "elsewhere"}))
    with pytest.raises(UserError, match=r"on elsewhere.* delete "), locked(tmp_path, "model_dir"):
        pass


def test_read_only_directories_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "read_only"
    with mounted(folder, "ro"):
        for name in (folder, folder / "run"):
            assert run_command.main([SMALL, "--set", f"model_dir={name}"]) == 2
            said = capsys.readouterr().err
            assert said.startswith(f"error: model_dir: {name} cannot be used: Read-only file sys")
            assert cache_command.main(["t0_train", "--output", str(name)]) == 2
            said = capsys.readouterr().err
            assert said.startswith(f"error: --output: {name} cannot be used: Read-only file sys")
            assert said.count("\n") == 1


@pytest.mark.parametrize("num_workers", [1, 2])
def test_cache_on_a_full_disk_goes_on_when_there_is_room(
    tmp_path: Path,
    num_workers: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "small"
    chosen = settings(tmp_path, cache_dir=output / "cache")

    def write(*_: Any) -> int:
        build.run(build.prepare(mixture(), chosen), num_workers, lambda _: None)
        return 0

    monkeypatch.setattr("mtf.jobs.cache.run._write", write)
    arguments = ["fruit", "--output", str(output / "cache")]
    with mounted(output, "size=4m"):
        filler = disk_full.fill(output, leave=40_000)
        assert cache_command.main(arguments) == 1
        said = capsys.readouterr().err
        assert re.match(
            rf"error: --output {output}/cache cannot be written to: No space left on device.*; "
            r"0\.0 of 4\.2 MB free\. Finished parts are kept",
            said,
        ), said
        assert said.count("\n") == 1
        filler.unlink()
        assert cache_command.main(arguments) == 0


def test_what_a_failed_save_writes_late_is_removed_too(tmp_path: Path) -> None:
    """TensorStore goes on with other tensors, and makes their folders again."""
    folder = tmp_path / "checkpoints" / "checkpoint_4.orbax-checkpoint-tmp" / "state" / "d"

    def write() -> None:
        for number in range(25):
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                (folder / str(number)).write_bytes(b"tensor")
            time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    remove_unfinished(tmp_path)
    writer.join()
    assert small.unfinished(tmp_path) == []


def test_failed_save_is_one_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Orbax's tracebacks are not printed beside it, and nothing half-written is left."""
    disk = tmp_path / "disk"
    state = TrainState(jnp.int32(1), {"kernel": jnp.ones((8, 8))}, {"kernel": jnp.ones(8)})
    with mounted(disk, "size=60k"):
        manager = CheckpointManager(disk / "run", SaveCheckpointConfig())
        with pytest.raises(Exception) as failed:
            for step in range(1, 9):
                manager.save(step, state.state_dict(), {"place": step})
                manager.wait()
        assert write_failure(failed.value, disk) == "No space left on device"
        assert "Traceback" not in capfd.readouterr().err
        assert small.unfinished(disk / "run")
        remove_unfinished(disk / "run")
        assert small.unfinished(disk / "run") == []
        for step in small.steps(disk / "run"):
            assert len(small.read_checkpoint(disk / "run", step)) == 3


def test_write_failures_are_told_from_others(tmp_path: Path) -> None:
    def of(number: int, *where: Path) -> OSError:
        return OSError(number, os.strerror(number), *map(str, where))

    assert write_failure(of(errno.ENOSPC), tmp_path) == "No space left on device"
    inside = tmp_path / "train" / "metrics.jsonl"
    assert write_failure(of(errno.EACCES, inside), tmp_path) == f"Permission denied ({inside})"
    assert write_failure(of(errno.EACCES, Path("/data/text.txt")), tmp_path) is None
    assert write_failure(of(errno.ENOENT, inside), tmp_path) is None
    wrapped = ValueError(f"Error writing {inside}: OS error 28: No space left on device")
    assert write_failure(wrapped, tmp_path) == "No space left on device"
    group = ExceptionGroup("several", [RuntimeError("a bug"), of(errno.EROFS)])
    assert write_failure(group, tmp_path) == "Read-only file system"
    assert write_failure(RuntimeError("a bug"), tmp_path) is None


@pytest.mark.parametrize(
    ("num_inodes", "num_free", "said"),
    [(100, 0, "; no free inodes, so delete some files"), (100, 9, " free"), (0, 0, " free")],
)
def test_full_inodes_are_not_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_inodes: int, num_free: int, said: str
) -> None:
    values = [*os.statvfs(tmp_path)]
    values[5], values[7] = num_inodes, num_free  # f_files and f_favail
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
    assert free_space(tmp_path).endswith(said)
