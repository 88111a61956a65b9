"""Stops training runs at random moments, continues them, and compares with runs never stopped.

    python -m tests.stress.random_stops --stops 100 --seed 0

A stop is `kill -9`, SIGTERM, Ctrl-C or SIGHUP, to runs of one process and of two. Each run is
continued after each stop until it is finished. What must hold:

* the process ends within a minute, with the exit status and the message that docs/config.md
  promises, without a traceback, a crash, or an error that Python ignored;
* every checkpoint that was complete before the stop is there after it, and the run continues from
  the last;
* every checkpoint has the bits of the one that a run which was never stopped saved at its step, and
  the metrics of all steps are the same.

The last lines are a table of moments, signals and outcomes. Exit status 1: something did not hold.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests import small

LAST_STEP = 40
SETTINGS = {
    "train_steps": LAST_STEP,
    "checkpoint.save.period": 4,
    "checkpoint.save.keep": None,
    "trainer.eval_period": 10,
    "trainer.stats_period": 1,
    "evaluator": "@mtf.evaluation.InferEvalConfig(period=10, num_examples=64)",
    "model.network.scan_layers": True,
}
# Seconds; a stop takes longer where the machine is busy with other things.
MAX_SECONDS_TO_END = 60.0
MAX_SECONDS_TO_MOMENT = 300.0

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# When a signal is sent: a random time after the line that begins so, or the step that it gives.
MOMENTS = ("start", "import", "compile", "step", "evaluation", "save", "end")
_CRASHES = re.compile(
    r"Traceback|Fatal Python error|Exception ignored|Segmentation|terminate called|Check failed"
)


@dataclasses.dataclass
class Process:
    """A process of a run, with what it has written so far."""

    popen: subprocess.Popen[str]
    lines: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        streams = ((self.popen.stdout, self.lines), (self.popen.stderr, self.errors))
        self._readers = [
            threading.Thread(target=into.extend, args=(stream,), daemon=True)
            for stream, into in streams
        ]
        for reader in self._readers:
            reader.start()

    def wait(self, seconds: float) -> bool:
        """Waits for its end, and for the last it has written; returns whether it has ended.

        If it has not, it is aborted, so that it shows where each of its threads is.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(seconds)
        ended = self.popen.poll() is not None
        if not ended:
            self.popen.send_signal(signal.SIGABRT)
            self.popen.wait(30)
        for reader in self._readers:
            reader.join(10)
        return ended


class Run:
    """A run directory, and the processes that train in it."""

    def __init__(self, folder: Path, name: str, num_processes: int) -> None:
        self.folder, self.name, self.num_processes = folder, name, num_processes
        self.run_dir = folder / name

    def start(self, **settings: object) -> list[Process]:
        """Starts or continues the run."""
        if (self.run_dir / "config.json").is_file():
            arguments = ["--from", self.name]
        else:
            values = {**SETTINGS, **settings, "model_dir": self.name}
            arguments = small.arguments(self.folder / "text.txt", **values)
        commands = [["-m", "mtf.run", *arguments]]
        if self.num_processes > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            module = ["-m", "tests.stress.one_of_processes"]
            commands = [
                [*module, str(i), str(self.num_processes), str(port), *arguments]
                for i in range(self.num_processes)
            ]
        return [Process(small.start_python(*each, cwd=self.folder)) for each in commands]

    def finish(self, **settings: object) -> str:
        """Runs it to its end; returns what the first process printed."""
        processes = self.start(**settings)
        for process in processes:
            process.wait(MAX_SECONDS_TO_MOMENT * 2)
        for process in processes:
            assert process.popen.returncode == 0, "".join(process.errors)
        return "".join(processes[0].lines)


@dataclasses.dataclass(frozen=True)
class Stop:
    """What is to be done to a run.

    Attributes:
      moment: one of MOMENTS.
      number: the signal.
      delay: how far into the moment, from 0 to 1.
      only: the process that gets the signal; None: all of them.
    """

    moment: str
    number: signal.Signals
    delay: float
    only: int | None


def plan(rng: random.Random, num_processes: int) -> Stop:
    """A random stop."""
    moment, number = rng.choice(MOMENTS), rng.choice(SIGNALS)
    # One of several that is killed, or stopped before they know each other, takes the others along
    # in jax's own time, minutes later; whoever started them ends them, as here.
    alone = num_processes > 1 and number != signal.SIGKILL and moment in ("step", "evaluation")
    only = rng.choice([None, *range(num_processes)]) if alone else None
    return Stop(moment, number, rng.random(), only)


def wait_for(stop: Stop, processes: Sequence[Process], run_dir: Path, first_step: int) -> None:
    """Returns at the moment of a stop, or when the processes have ended before it."""
    first, started = processes[0], time.monotonic()

    def said(beginning: str) -> bool:
        return any(line.startswith(beginning) for line in list(first.lines))

    step = min(LAST_STEP, first_step + 1 + int(stop.delay * 12))
    evaluated = min(LAST_STEP, (first_step // 10 + 1) * 10)
    come = {
        "start": lambda: True,
        "import": lambda: True,
        "compile": lambda: said("compiling"),
        "step": lambda: said(f"step {step}/"),
        "evaluation": lambda: said(f"step {evaluated}/"),
        # What a killed process has left is removed before the first step.
        "save": lambda: said("step") and bool(small.unfinished(run_dir)),
        "end": lambda: said(f"step {LAST_STEP}  held_out, decoded"),
    }[stop.moment]
    while not come():
        if any(process.popen.poll() is not None for process in processes):
            return
        if time.monotonic() - started > MAX_SECONDS_TO_MOMENT:
            for process in processes:
                process.popen.kill()
                process.wait(10)
            shown = ["".join(process.lines + process.errors)[-2000:] for process in processes]
            raise AssertionError(f"no {stop.moment}: {shown}")
        time.sleep(0.0005)
    scale = {"start": 0.3, "import": 6.0, "compile": 3.0, "evaluation": 0.5, "save": 0.02}
    time.sleep(stop.delay * scale.get(stop.moment, 0.5 if stop.moment == "end" else 0.005))


def at_once(number: signal.Signals, process: Process) -> str:
    """How a process ended, in a word, if a signal ended it at once; otherwise "".

    Raises AssertionError if it crashed, or did not say what docs/config.md promises.
    """
    status = process.popen.returncode
    out, err = "".join(process.lines), "".join(process.errors)
    if number == signal.SIGKILL and status == -signal.SIGKILL:
        return "killed"
    own = not err or "KeyboardInterrupt" in err  # Python's, before mtf's first line has run
    if not out and own and "main()" not in err and status in (-number, 128 + number, 1):
        return "before mtf"
    check_no_crash(process)
    if status != 128 + number:
        return ""
    what = "Interrupted" if number == signal.SIGINT else f"Stopped by {number.name}"
    assert re.search(rf"^{what}[.:]", err, re.MULTILINE), shown(process)
    return "nothing to save"


def check_no_crash(process: Process) -> None:
    """Asserts that a process has written no traceback, and nothing else of a crash."""
    assert not _CRASHES.search("".join(process.errors)), shown(process)


def shown(process: Process) -> str:
    """How a process ended, and the last that it wrote."""
    out, err = "".join(process.lines), "".join(process.errors)
    return f"status {process.popen.returncode}\nstdout: {out[-2000:]}\nstderr: {err[-4000:]}"


def outcome(stop: Stop, process: Process, is_first: bool, run_dir: Path) -> str:
    """How a process ended, in a word; raises AssertionError where that is not as documented."""
    out, found = "".join(process.lines), at_once(stop.number, process)
    if found:
        lost = found == "nothing to save" and re.search(r"^step \d+/", out, re.MULTILINE)
        assert not lost, f"lost a step: {shown(process)}"
        return found
    assert process.popen.returncode == 0, shown(process)
    saved = re.search(r"^(?:SIG\w+|another process's signal): saved step (\d+) in", out, re.M)
    if saved:
        assert int(saved[1]) in small.steps(run_dir), shown(process)
        return "saved"
    if not is_first:
        return "with the first"  # which alone prints
    assert LAST_STEP in small.steps(run_dir), shown(process)
    return "finished"


def check_saved(run_dir: Path, whole: Path) -> None:
    """Asserts that all checkpoints and metrics are those of a run that was never stopped."""
    assert small.unfinished(run_dir) == []
    for step in small.steps(run_dir):
        found, expected = small.read_checkpoint(run_dir, step), small.read_checkpoint(whole, step)
        assert found == expected, f"{run_dir}, step {step}: other tensors"
        assert small.read_data_state(run_dir, step) == small.read_data_state(whole, step)
        assert small.read_measured(run_dir, step) == small.read_measured(whole, step), step
    small.assert_same_end(run_dir, whole, LAST_STEP)


def run_stops(folder: Path, num_stops: int, num_processes: int, rng: random.Random) -> list[tuple]:
    """Stops runs so many times; returns moment, signal, outcomes and seconds of each stop."""
    whole = Run(folder, f"whole_{num_processes}", num_processes)
    # It saves at every step, for whatever step a signal makes the others save.
    whole.finish(**{"checkpoint.save.period": 1})
    table: list[tuple] = []
    run, number = Run(folder, f"run_{num_processes}_0", num_processes), 0

    def finished() -> bool:
        return LAST_STEP in small.steps(run.run_dir)

    while len(table) < num_stops or number >= 0:
        if len(table) >= num_stops or finished():
            print(f"{run.name}: continued to its end", flush=True)
            run.finish()
            check_saved(run.run_dir, whole.run_dir)
            if len(table) >= num_stops:
                return table
            number += 1
            run = Run(folder, f"run_{num_processes}_{number}", num_processes)
        stop = plan(rng, num_processes)
        before = small.steps(run.run_dir)
        first_step = before[-1] if before else 0
        processes = run.start()
        wait_for(stop, processes, run.run_dir, first_step)
        hit = [p for i, p in enumerate(processes) if stop.only in (None, i)]
        heard = [p.popen.poll() is None for p in hit]
        for process in hit:
            process.popen.send_signal(stop.number)
        sent = time.monotonic()
        ended = [process.wait(MAX_SECONDS_TO_END) for process in processes]
        said = "\n".join("".join([*process.lines, *process.errors]) for process in processes)
        assert all(ended), f"{run.name}: not ended {MAX_SECONDS_TO_END:.0f} s after {stop}: {said}"
        seconds = time.monotonic() - sent
        if any(heard):
            outcomes = {
                outcome(stop, process, i == 0, run.run_dir) for i, process in enumerate(processes)
            }
            if "saved" in outcomes or "finished" in outcomes:
                outcomes.discard("with the first")
            after = small.steps(run.run_dir)
            assert set(before) <= set(after), f"lost checkpoints: {before} → {after}"
            said = "".join(processes[0].lines)
            if "compiling" in said:
                assert small.continued_from(said) == (first_step or None), said
            what = " + ".join(sorted(outcomes))
            table.append((stop.moment, stop.number.name, what, seconds))
            print(
                f"{len(table):4}  {run.name}  {stop.moment:10}  {stop.number.name:7}  "
                f"{'one' if stop.only is not None else 'all'}  {what}, {seconds:.1f} s, "
                f"step {first_step} → {after[-1] if after else 0}",
                flush=True,
            )
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the stops that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.random_stops")
    parser.add_argument("--stops", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--two-processes", type=int, metavar="N", help="of the stops (default: a fifth)"
    )
    parser.add_argument("--keep", metavar="DIR", type=Path, help="work in DIR, and leave it there")
    options = parser.parse_args(argv)
    two = options.stops // 5 if options.two_processes is None else options.two_processes
    rng = random.Random(options.seed)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["PYTHONFAULTHANDLER"] = "1"
    with tempfile.TemporaryDirectory(prefix="mtf-stops-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        small.write_text(folder)
        table = []
        for num_processes, num_stops in ((1, options.stops - two), (2, two)):
            if num_stops:
                table += run_stops(folder, num_stops, num_processes, rng)
    print()
    for (moment, name, what), number in sorted(collections.Counter(r[:3] for r in table).items()):
        print(f"{number:4}  {moment:10}  {name:7}  {what}")
    longest = max(row[3] for row in table)
    print(f"{len(table)} stops, the longest ended within {longest:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
