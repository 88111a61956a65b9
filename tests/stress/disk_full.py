"""Fills the disk of runs and conversions at many moments, makes room again, and continues them.

    python -m tests.stress.disk_full --moments 20

The run directory is on a tmpfs of a few megabytes (which takes the right to mount one), filled but
for so many bytes: from none, so that nothing can be written at all, to just too few for the last
checkpoint. What must hold:

* the run ends within five minutes, with one message on stderr, no traceback and exit status 1, or 2
  where not even the config could be written and nothing was run;
* what it has written of checkpoints is complete and has the bits of a run on an empty disk, and
  nothing that is half-written is left;
* when there is room again, the run continues from the last of them, and ends as the other did;
* a conversion ends with one message and leaves nothing, and works when there is room again.

Exit status 1: something did not hold; 77: a tmpfs cannot be mounted here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import small
from tests.stress import random_stops
from tests.stress.command_stops import FORMATS, write_source
from tests.stress.random_stops import LAST_STEP, check_saved

SETTINGS = {name: x for name, x in random_stops.SETTINGS.items() if name != "evaluator"}
SIZE = 64 * 2**20
MAX_SECONDS = 300.0  # on a busy machine; else some twenty
CANNOT_MOUNT = 77


class CannotMountError(Exception):
    """This process may not mount a tmpfs."""


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Mounts a tmpfs on a folder, which is made.

    Args:
      folder: must not exist.
      options: such as "size=4m" or "ro".

    Raises:
      CannotMountError: says why.
    """
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CannotMountError("there is no mount command") from error
    if done.returncode:
        raise CannotMountError(done.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, *, leave: int) -> Path:
    """Fills a mounted folder but for so many bytes; returns the file that does it."""
    file = folder / "filler"
    file.touch()
    disk = os.statvfs(folder)
    with file.open("wb") as out:
        for _ in range((disk.f_bavail * disk.f_frsize - leave) // disk.f_frsize):
            out.write(bytes(disk.f_frsize))
    return file


def used(folder: Path) -> int:
    """Bytes that are taken on a mounted folder."""
    disk = os.statvfs(folder)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def check_stopped(status: int, out: str, err: str, run_dir: Path, whole: Path) -> str:
    """Asserts that a run ended as documented; returns what it was doing, in words."""
    shown = f"status {status}\nstdout: {out[-2000:]}\nstderr: {err[-4000:]}"
    assert "Traceback" not in err and "Exception ignored" not in err, shown
    said = re.fullmatch(r"error: (.+)\n", err)
    assert said, f"not one message: {shown}"
    assert re.search("No space left on device", said[1]), shown
    assert small.unfinished(run_dir) == [], shown
    steps = small.steps(run_dir)
    if status == 2:
        assert "cannot be used" in said[1] and not steps, shown
        assert not (run_dir / "config.json").exists(), shown
        return "nothing was run"
    assert status == 1, shown
    last = f"Last complete checkpoint: {f'checkpoint_{steps[-1]}' if steps else 'none'}."
    assert last in said[1] and "--from" in said[1], shown
    for step in steps:
        assert small.read_checkpoint(run_dir, step) == small.read_checkpoint(whole, step), step
    return f"after step {steps[-1]} was saved" if steps else "before the first checkpoint"


def run_moment(folder: Path, whole: Path, leave: int, number: int) -> tuple[int, str]:
    """Runs with so many bytes, then with room; returns the exit status of the first, and when."""
    disk = folder / f"disk_{number}"
    with mounted(disk, f"size={SIZE}"):
        run_dir = disk / "run"
        filler = fill(disk, leave=leave)
        values = {**SETTINGS, "model_dir": run_dir}
        arguments = small.arguments(folder / "text.txt", **values)
        with small.start(arguments, folder) as process:
            try:
                out, err = process.communicate(timeout=MAX_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        when = check_stopped(process.returncode, out, err, run_dir, whole)
        steps = small.steps(run_dir)
        filler.unlink()
        if (run_dir / "config.json").is_file():
            arguments = ["--from", str(run_dir)]
        said = small.run(arguments, folder)
        assert small.continued_from(said) == (steps[-1] if steps else None), said
        check_saved(run_dir, whole)
    return process.returncode, when


def run_moments(folder: Path, moments: int) -> None:
    """Runs so many of them, with equal distances in bytes.

    Raises:
      CannotMountError: see `mounted`.
    """
    small.write_text(folder)
    with mounted(folder / "whole", f"size={SIZE}"):
        whole = folder / "whole" / "run"
        values = {**SETTINGS, "model_dir": whole}
        small.run(small.arguments(folder / "text.txt", **values), folder)
        needed = used(folder / "whole")
        print(f"a run needs {needed:,} bytes", flush=True)
        # Less than all but a checkpoint: two runs' files differ in size by much less than that.
        saved = whole / "checkpoints" / f"checkpoint_{LAST_STEP}"
        last = sum(file.stat().st_size for file in saved.rglob("*"))
        for number in range(moments):
            leave = int((needed - last) * number / max(moments - 1, 1))
            started = time.monotonic()
            status, when = run_moment(folder, whole, leave, number)
            seconds = time.monotonic() - started
            print(
                f"{number + 1:4}  {leave:9,} bytes left  exit status {status}  {when}; continued "
                f"to the same end  ({seconds:.0f} s)",
                flush=True,
            )


def fill_disks(folder: Path, moments: int) -> Iterator[str]:
    """Converts to disks with less and less room; yields a line for each format.

    Raises:
      CannotMountError: see `mounted`.
    """
    source = write_source(folder / "source")
    for to in FORMATS:
        with mounted(disk := folder / f"disk_{to}", "size=48m"):
            out = disk / "out"
            command = ["-m", "mtf.convert", str(source), str(out), "--to", to, "--no-verify"]
            small.python(*command)
            needed = used(disk)
            shutil.rmtree(out)
            for number in range(moments):
                filler = fill(disk, leave=int(0.95 * needed * number / moments))
                err = small.without_waiting(small.python(*command, status=1).stderr)
                assert err.startswith(f"error: {out} could not be written: No space left"), err
                assert err.count("\n") == 1, err
                assert [path.name for path in disk.iterdir()] == [filler.name]
                filler.unlink()
            small.python(*command)
        yield f"{to}: {moments} full disks"


def main(argv: Sequence[str] | None = None) -> int:
    """Fills disks as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.disk_full")
    parser.add_argument("--moments", type=int, default=20, help="default: %(default)s")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="mtf-full-") as folder:
        try:
            run_moments(Path(folder), options.moments)
            for line in fill_disks(Path(folder), options.moments // 4):
                print(line, flush=True)
        except CannotMountError as error:
            print(f"a tmpfs cannot be mounted: {error}", file=sys.stderr)
            return CANNOT_MOUNT
    return 0


if __name__ == "__main__":
    sys.exit(main())
