"""Stops commands at random moments, and runs them again; random_stops.py stops training.

    python -m tests.stress.command_stops --stops 100 --seed 0

A stop is `kill -9`, SIGTERM, Ctrl-C or SIGHUP, to the process that was started, to all processes of
the command, or to one that a sweep or `mtf launch local` has started. What must hold:

* the exit status and the message are those of docs/config.md and docs/launch.md, without a
  traceback, and no process of the command is left after a minute;
* no result looks complete and is not, and every complete checkpoint is still there; a conversion
  that was not killed leaves nothing beside its result;
* the same command then ends with the files of one that was never stopped, and what a killed
  conversion has left is gone.

A command that needs a package that is missing is left out. Exit status 1: something did not hold.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from conversion import open_checkpoint
from mtf.base.writing import upload
from mtf.storage import as_path
from tests import small, stores
from tests.conversion import writers
from tests.stress import random_stops, same_as
from tests.stress.random_stops import MAX_SECONDS_TO_END, SIGNALS, Process, shown

MAX_SECONDS = 600.0  # that a command may take
WHOLE = Path("whole")  # what was never stopped
TRAIN = shlex.join(small.arguments("text.txt", **random_stops.SETTINGS))
LAUNCH = "mtf launch local --devices-per-process 1 --processes"


class Kind(NamedTuple):
    """A command, as the arguments of `python -m`.

    Attributes:
      output: the folder that it writes.
      complete: the file in it that makes it complete; "": the folder does.
      run_dirs: the run directories in it, if the command trains.
    """

    command: str
    output: str
    complete: str = ""
    run_dirs: tuple[str, ...] = ()


RANK = "mtf.run \"recipes.t0_eval(checkpoint='run', files='ranked.jsonl')\" --set"
EVALUATE = (
    "mtf.run \"recipes.evaluate(checkpoint='run', mixture_or_task_name='fruit_which_is_it')\" --set"
)
INFER = "mtf.run \"recipes.infer(checkpoint='run', files='texts.txt')\" --set batch_size=4"
TASK = "c4_v220_span_corruption"
ONE = "partitioner.num_partitions=1"
FORMATS = ("t5x", "t5x_orbax", "mtf", "hf")
NEEDS = {"fetch": "gcp_storage_emulator", "sweep": "optuna"}
_ALL = {
    "rank": Kind(f"{RANK} output_dir=ranked {ONE}", "ranked", "results.json"),
    "evaluate": Kind(f"{EVALUATE} output_dir=evaluated {ONE}", "evaluated", "results.json"),
    "infer": Kind(
        f"{INFER} checkpoint_period=1 decoding.max_length=8 output_dir=inferred",
        "inferred",
        "texts-predict.jsonl-00000-of-00001",
    ),
    "cache": Kind(
        f"mtf.cache {TASK} --vocabulary byt5 --num-workers 2 --output cache",
        "cache",
        f"mixtures/{TASK}.json",
    ),
    **{
        to: Kind(f"mtf.convert source/checkpoint_7 {to} --to {to} --no-verify", to)
        for to in FORMATS
    },
    "fetch": Kind("mtf fetch gs://stops/checkpoint_7", "copies", "gs/stops/.checkpoint_7.stored"),
    "sweep": Kind(
        f"mtf.run {TRAIN} model_dir=sweep --sweep random_seed=0,1", "sweep", "", ("000", "001")
    ),
    "launch 2": Kind(f"{LAUNCH} 2 -- {TRAIN} model_dir=two", "two", "", ("",)),
    "launch 4": Kind(f"{LAUNCH} 4 -- {TRAIN} model_dir=four", "four", "", ("",)),
}
KINDS = {
    name: kind for name, kind in _ALL.items() if importlib.util.find_spec(NEEDS.get(name, "mtf"))
}


def write_source(folder: Path) -> Path:
    """Writes a checkpoint with optimizer state, which takes about half a second to convert."""
    parameters = writers.random_parameters(
        vocab_size=8000, emb_dim=256, num_encoder_layers=4, num_decoder_layers=4, mlp_dim=512
    )
    return writers.write_t5x(folder, parameters, adafactor=True)


@contextlib.contextmanager
def prepared(folder: Path) -> Iterator[dict[str, str]]:
    """Writes what the commands read; yields their environment variables."""
    same_as.write_data(folder)
    text = small.write_text(folder)
    small.run_process(small.arguments(text, train_steps=2, model_dir="run"), folder)
    source = write_source(folder / "source")
    variables = {"MTF_PROMPTS": "templates", "MTF_DATA_DIR": "mirror", "MTF_CACHE": "copies"}
    variables |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONFAULTHANDLER": "1"}
    with contextlib.ExitStack() as stack:
        if "fetch" in KINDS:
            address = stack.enter_context(stores.gcs("stops"))
            variables["STORAGE_EMULATOR_HOST"] = os.environ["STORAGE_EMULATOR_HOST"] = address
            stack.callback(os.environ.pop, "STORAGE_EMULATOR_HOST")
            upload(source, as_path(f"gs://stops/{source.name}"))
        yield variables


class Stops:
    """Stops commands of one kind in a folder, after one that is not stopped."""

    def __init__(self, kind: Kind, folder: Path, variables: dict[str, str]) -> None:
        self.kind, self.folder, self.variables = kind, folder, variables
        self.output, self.whole = folder / kind.output, folder / WHOLE / kind.output
        # It saves at every step, for whatever step a signal makes the others save.
        started = time.monotonic()
        process = self.start(re.sub(r"(checkpoint.save.period)=\d+", r"\1=1", kind.command))
        while process.popen.poll() is None and not self.written():
            time.sleep(0.01)
        self.seconds_to_write = time.monotonic() - started
        self.end(process)
        self.seconds = time.monotonic() - started
        self.whole.parent.mkdir(exist_ok=True)
        self.output.rename(self.whole)

    def start(self, command: str) -> Process:
        """Starts a command, whose processes are found by a variable of their environment."""
        self.variables["STOPS_ID"] = str(time.time_ns())
        words = shlex.split(command)
        return Process(small.start_python("-m", *words, cwd=self.folder, **self.variables))

    def end(self, process: Process, *, may_be_refused: bool = False) -> None:
        """Waits for the end of a command that nobody stops."""
        assert process.wait(MAX_SECONDS), shown(process)
        refused = may_be_refused and process.popen.returncode == 2
        assert process.popen.returncode == 0 or refused, shown(process)

    def processes(self) -> list[int]:
        """The ids of the command's processes that have not ended."""
        mark = f"STOPS_ID={self.variables['STOPS_ID']}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # It has ended; nothing can be read of a zombie.
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def written(self) -> set[tuple[Path, int]]:
        """What is in the output, or beside it under a temporary name, with the times of change."""
        found = set()
        for top in (self.output, *self.beside()):
            for file in (top, *top.rglob("*")):
                with contextlib.suppress(OSError):
                    found.add((file, file.stat().st_mtime_ns))
        return found

    def beside(self) -> set[Path]:
        """What is beside the output under a temporary name."""
        return {*self.folder.glob(f".{self.output.name}.*")}

    def steps(self) -> set[tuple[str, int]]:
        """The complete checkpoints of the runs in the output."""
        dirs = self.kind.run_dirs
        return {(name, step) for name in dirs for step in small.steps(self.output / name)}

    def is_complete(self) -> bool:
        """Whether the output looks complete; asserts that it then is."""
        complete = not self.kind.run_dirs and (self.output / self.kind.complete).exists()
        if complete:
            self.compare()
        return complete

    def compare(self) -> None:
        """Asserts that the output is that of a command that was never stopped."""
        for name in self.kind.run_dirs:
            random_stops.check_saved(self.output / name, self.whole / name)
        if self.kind.run_dirs:
            tables = [folder / "results.csv" for folder in (self.output, self.whole)]
            assert len({file.exists() and file.read_bytes() for file in tables}) == 1, tables
            return
        name = self.output.name
        if name in ("t5x_orbax", "mtf"):  # The names of Orbax's files are random.
            assert tensors(self.output) == tensors(self.whole)
            return
        # How a command ended is not a part of its output; a killed one leaves that undone.
        status = {Path("end.json"), Path("processes/0.json")}
        found = {file.relative_to(name) for file in same_as.files(self.folder, name)} - status
        files = same_as.files(self.folder, f"{WHOLE / name}")
        expected = {file.relative_to(WHOLE / name) for file in files} - status
        assert found == expected, f"{self.output}: {sorted(found ^ expected)}"
        for file in found:
            contents = [same_as.content(self.folder, top / name / file) for top in (Path(), WHOLE)]
            assert contents[0] == contents[1], f"{self.output / file}: other content"

    def stop(self, rng: random.Random) -> str:
        """Starts the command and stops it; returns what came of it; "": it has ended before."""
        number, delay = rng.choice(SIGNALS), rng.random()
        target = rng.choice(("first", "all", "one") if self.kind.run_dirs else ("first", "all"))
        in_writing, was = rng.random() < 0.7, self.written()
        steps, was_complete, beside = self.steps(), self.is_complete(), self.beside()
        process, started = self.start(self.kind.command), time.monotonic()
        while in_writing and process.popen.poll() is None and self.written() == was:
            assert time.monotonic() - started < MAX_SECONDS, shown(process)
            time.sleep(0.001)
        seconds = self.seconds - self.seconds_to_write if in_writing else self.seconds_to_write
        time.sleep(delay * seconds)
        alive = self.processes()
        others = [each for each in alive if each != process.popen.pid]
        if target == "first" or not others:
            chosen, target = [process.popen.pid], "first"
        else:
            chosen = alive if target == "all" else [rng.choice(others)]
        if ended := process.popen.poll() is not None:
            self.seconds -= 0.3 * (self.seconds - self.seconds_to_write)
        for each in () if ended else chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, number)
        sent = time.monotonic()
        assert process.wait(MAX_SECONDS_TO_END), f"not ended {number.name}: {shown(process)}"
        while (left := self.processes()) and time.monotonic() - sent < MAX_SECONDS_TO_END:
            time.sleep(0.1)
        names = [Path(f"/proc/{each}/cmdline").read_text().replace("\0", " ") for each in left]
        assert not left, f"orphans after {number.name} to {target}: {names}"
        what = self.outcome(number, target, process, was_complete)
        assert what != "finished" or self.kind.run_dirs or self.is_complete(), shown(process)
        assert steps <= self.steps(), f"lost checkpoints: {steps} → {self.steps()}"
        if self.kind.output in FORMATS and number != signal.SIGKILL:
            assert self.beside() <= beside, f"left after {number.name}: {self.beside()}"
        self.is_complete()
        return "" if ended else f"{number.name:7}  {target:5}  {what}"

    def outcome(
        self, number: signal.Signals, target: str, process: Process, was_complete: bool
    ) -> str:
        """How the command ended, in a word; raises AssertionError where that is not documented."""
        status, out, err = process.popen.returncode, "".join(process.lines), "".join(process.errors)
        if target != "one" and (found := random_stops.at_once(number, process)):
            # The launcher passes on Ctrl-C, which is the second one for those that had it.
            may_lose = found != "nothing to save" or (target == "all" and number == signal.SIGINT)
            assert may_lose or not re.search(r"^step \d+/", out, re.MULTILINE), shown(process)
            return found
        random_stops.check_no_crash(process)
        if status == 0:
            said = re.search(r"^SIG\w+: (?:saved step|to resume)|^another process's", out, re.M)
            return "saved" if said else "finished"
        if was_complete:
            assert status == 2, shown(process)
            return "was complete"
        # What is done to one process ends the others, or a run of the sweep.
        assert target != "first" and self.kind.run_dirs and status in (1, 128 + number)
        said = "results in" if self.kind.command.startswith("mtf.run") else "mtf launch: process"
        assert said in err + out, shown(process)
        return "failed with one"

    def stops(self, number: int, rng: random.Random) -> Iterator[str]:
        """Stops so many commands; yields a line for each."""
        done = 0
        while done < number:
            if line := self.stop(rng):
                yield line
                done += 1
            if done == number or not line or rng.random() < 0.6:
                self.end(self.start(self.kind.command), may_be_refused=self.is_complete())
                self.compare()
                assert self.kind.output not in FORMATS or not self.beside(), self.beside()
                for each in (self.output, *self.beside()):
                    shutil.rmtree(each) if each.is_dir() else each.unlink()


def tensors(checkpoint: Path) -> dict[str, bytes]:
    """The contents of the tensors of a checkpoint."""
    return {name: x.read().tobytes() for name, x in open_checkpoint(checkpoint).tensors.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the stops that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.command_stops")
    parser.add_argument("--stops", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    options = parser.parse_args(argv)
    rng, table, failed = random.Random(options.seed), collections.Counter[str](), 0
    with (
        tempfile.TemporaryDirectory(prefix="mtf-stops-") as name,
        prepared(Path(name)) as variables,
    ):
        for i, kind in enumerate(options.kinds):
            number = (options.stops + i) // len(options.kinds)
            try:
                for line in Stops(KINDS[kind], Path(name), variables).stops(number, rng):
                    table[f"{kind:9} {line}"] += 1
                    print(f"{table.total():4}  {kind:9} {line}", flush=True)
            except AssertionError as error:
                failed += 1
                print(f"{kind}: {error}", flush=True)
    print()
    for line, count in sorted(table.items()):
        print(f"{count:4}  {line}")
    print(f"{table.total()} stops, {failed} did not hold")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
