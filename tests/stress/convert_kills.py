"""Stops conversions at random moments, and fills the disk that they write to.

    python -m tests.stress.convert_kills --kills 30 --seed 0

What must hold for each target format:

* after `kill -9`, SIGTERM or Ctrl-C, OUT_DIR does not exist, or has all tensors and files;
* after SIGTERM and Ctrl-C, nothing is left beside it;
* the same command then finishes, and what the killed process left beside OUT_DIR is gone;
* on a full disk there is one message and nothing that is half-written.

Exit status 1: something did not hold; the full disk is left out where a tmpfs cannot be mounted.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from conversion import open_checkpoint
from tests.conversion import writers
from tests.small import start_python
from tests.stress import disk_full

FORMATS = ("t5x", "t5x_orbax", "mtf", "hf")
Contents = tuple[dict[str, bytes], set[str]]


def write_source(folder: Path) -> Path:
    """Writes a checkpoint with optimizer state, which takes about half a second to convert."""
    parameters = writers.random_parameters(
        vocab_size=8000, emb_dim=256, num_encoder_layers=4, num_decoder_layers=4, mlp_dim=512
    )
    return writers.write_t5x(folder, parameters, adafactor=True)


def start(source: Path, out: Path, to: str) -> subprocess.Popen[str]:
    """Starts a conversion in a process of its own."""
    command = ["-m", "mtf.convert", str(source), str(out), "--to", to]
    command += ["--no-verify"] * (to == "hf")
    return start_python(*command, PYTHONUNBUFFERED="1")


def convert(source: Path, out: Path, to: str) -> float:
    """Converts, and returns the seconds from the first line to the end."""
    with start(source, out, to) as process:
        assert process.stdout is not None
        process.stdout.readline()
        begin = time.monotonic()
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    return time.monotonic() - begin


def contents(out: Path) -> Contents:
    """Returns the tensors, and the names of the files but those that Orbax's layout invents."""
    tensors = {name: x.read().tobytes() for name, x in open_checkpoint(out).tensors.items()}
    files = (path for path in out.rglob("*") if path.is_file() and path.parent.name != "d")
    return tensors, {path.relative_to(out).as_posix() for path in files}


def left(out: Path) -> list[str]:
    """Returns the names of what is beside OUT_DIR and begins as a temporary directory does."""
    return [path.name for path in out.parent.iterdir() if path.name.startswith(f".{out.name}.")]


def kill_conversions(folder: Path, num_kills: int, rng: random.Random) -> Iterator[str]:
    """Kills so many conversions of each format; yields a line for each."""
    source = write_source(folder)
    for to in FORMATS:
        whole = folder / f"{to}_whole"
        seconds, expected = convert(source, whole, to), contents(whole)
        for i in range(num_kills):
            out = folder / f"{to}_{i}"
            with start(source, out, to) as process:
                assert process.stdout is not None
                process.stdout.readline()
                moment = rng.uniform(0, 1.2 * seconds)
                time.sleep(moment)
                number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
                process.send_signal(number)
                process.communicate()
            was_complete, num_left = out.exists(), len(left(out))
            assert number == signal.SIGKILL or not num_left, left(out)
            if was_complete:
                assert contents(out) == expected
            else:
                convert(source, out, to)
                assert contents(out) == expected
                assert left(out) == [], left(out)
            after = "was complete" if was_complete else f"left {num_left}, was done again"
            yield f"{to}: {number.name} after {moment:.2f} of {seconds:.2f} s, {after}"


def fill_disks(folder: Path, moments: int) -> Iterator[str]:
    """Converts to disks with less and less room; yields a line for each format.

    Raises:
      CannotMountError: see `disk_full.mounted`.
    """
    source = write_source(folder)
    for to in FORMATS:
        with disk_full.mounted(folder / f"disk_{to}", "size=48m"):
            disk = folder / f"disk_{to}"
            out = disk / "out"
            convert(source, out, to)
            needed = disk_full.used(disk)
            shutil.rmtree(out)
            for number in range(moments):
                filler = disk_full.fill(disk, leave=int(0.95 * needed * number / moments))
                with start(source, out, to) as process:
                    _, err = process.communicate(timeout=300)
                assert process.returncode == 1, err
                assert err.startswith(f"error: {out} could not be written: No space left"), err
                assert err.count("\n") == 1, err
                assert [path.name for path in disk.iterdir()] == [filler.name]
                filler.unlink()
            convert(source, out, to)
        yield f"{to}: {moments} full disks"


def main() -> int:
    """Parses the command line, and runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30, help="of each format")
    parser.add_argument("--disks", type=int, default=5, help="full disks of each format")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mtf-kills-") as folder:
        for line in kill_conversions(Path(folder), options.kills, random.Random(options.seed)):
            print(line, flush=True)
    with tempfile.TemporaryDirectory(prefix="mtf-full-") as folder:
        try:
            for line in fill_disks(Path(folder), options.disks):
                print(line, flush=True)
        except disk_full.CannotMountError as error:
            print(f"a tmpfs cannot be mounted: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
