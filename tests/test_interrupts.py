"""Signals: the run saves where it is, says so, and goes on from there; commands end at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from tests import small
from tests.small import ROOT

LAST_STEP = 60
# For what is to be interrupted while it compiles.
NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "false"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds text.txt and `whole`, a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("interrupts")
    small.write_text(folder)
    small.run(_arguments(folder, "whole"), folder)
    return folder


def _arguments(folder: Path, model_dir: str) -> list[str]:
    return small.arguments(
        folder / "text.txt",
        train_steps=LAST_STEP,
        model_dir=model_dir,
        model__network__scan_layers=True,
    )


def test_saves_says_so_and_goes_on(folder: Path) -> None:
    run_dir = folder / "stopped"
    with small.start(_arguments(folder, "stopped"), folder) as process:
        small.read_until(process.stdout, "step 5/")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert small.without_waiting(err).startswith("\nSIGTERM: saving after this step")
    assert "Traceback" not in err
    said = re.search(rf"^SIGTERM: saved step (\d+) in {run_dir}/checkpoints$", out, re.M)
    assert said, out
    step = int(said[1])
    assert 5 <= step < LAST_STEP
    assert small.steps(run_dir) == [step]
    assert "resume with: python -m mtf.run --from stopped" in out
    assert small.continued_from(small.run(["--from", "stopped"], folder)) == step
    small.assert_same_end(run_dir, folder / "whole", LAST_STEP)


@pytest.mark.slow
def test_stops_at_once_while_compiling(folder: Path) -> None:
    """There is nothing to save before the first step, and compiling may take minutes."""
    with small.start(_arguments(folder, "compiling"), folder, **NO_CACHE) as process:
        small.read_until(process.stdout, "compiling …")
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        sent = time.perf_counter()
        out, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert time.perf_counter() - sent < 3
    assert (out, err) == ("", "Stopped by SIGTERM.\n")
    assert small.steps(folder / "compiling") == []


@pytest.mark.slow
def test_hangup_saves_though_the_terminal_is_gone(folder: Path) -> None:
    arguments = _arguments(folder, "hangup")
    arguments += ["trainer.stats_period=100_000", "train_steps=100_000"]
    with small.start(arguments, folder) as process:
        small.read_until(process.stdout, "compiled")
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0
    (step,) = small.steps(folder / "hangup")
    assert step < 100_000
    assert small.unfinished(folder / "hangup") == []
    # Also the statistics of a period that was cut short.
    assert [line["step"] for line in small.read_metrics(folder / "hangup")] == [step]


@pytest.mark.slow
def test_second_ctrl_c_stops_at_once(folder: Path) -> None:
    with small.start(_arguments(folder, "twice"), folder) as process:
        small.read_until(process.stdout, "step 5/")
        process.send_signal(signal.SIGINT)
        small.read_until(process.stderr, "SIGINT: saving")
        process.send_signal(signal.SIGINT)
        sent = time.perf_counter()
        _, err = process.communicate()
    assert process.returncode == 130, err
    assert time.perf_counter() - sent < 3
    assert small.without_waiting(err) == "Interrupted.\n"
    assert small.steps(folder / "twice") == []
    assert small.continued_from(small.run(["--from", "twice"], folder)) is None
    small.assert_same_end(folder / "twice", folder / "whole", LAST_STEP)


@pytest.mark.slow
def test_reader_that_ctrl_c_ended_too_loses_nothing(folder: Path) -> None:
    """As in `python -m mtf.run … | tee log`: Ctrl-C goes to both."""
    with small.start(_arguments(folder, "piped"), folder) as process:
        small.read_until(process.stdout, "step 5/")
        assert process.stdout is not None
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert len(small.steps(folder / "piped")) == 1


@pytest.mark.slow
def test_ctrl_c_before_training(folder: Path) -> None:
    """It has nothing to save yet: one is enough."""
    with small.start(_arguments(folder, "early"), folder) as process:
        while not (folder / "early" / "config.json").exists():
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130, err
    assert (out, err) == ("", "Interrupted.\n")


BEGINNING = """
from mtf.base import signals
signals.listen()
import gc, hashlib, os, sys, time
"""
# Releases the interpreter's lock, as XLA does, and runs no Python code.
IN_C = "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"


def _start(script: str, *, ignored: int | None = None) -> subprocess.Popen[str]:
    # What is ignored is inherited.
    before = None if ignored is None else signal.signal(ignored, signal.SIG_IGN)
    process = small.start_python("-c", BEGINNING + textwrap.dedent(script))
    if ignored is not None:
        signal.signal(ignored, before)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _end(process: subprocess.Popen[str], *numbers: int) -> tuple[int, str, str]:
    """Sends signals; returns the exit status, and what was written to stdout and stderr."""
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.05)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.stdout is not None and process.stderr is not None
    with process.stdout as out, process.stderr as err:
        return process.returncode, out.read(), small.without_waiting(err.read())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ends_while_the_main_thread_is_in_foreign_code(number: signal.Signals) -> None:
    said = "Interrupted." if number == signal.SIGINT else f"Stopped by {number.name}."
    process = _start(f"print('ready', flush=True); {IN_C}")
    assert _end(process, number) == (128 + number, "", f"{said}\n")


def test_ends_in_a_garbage_collector_callback() -> None:
    """What is raised there is ignored, and the program would go on."""
    process = _start(
        """
        gc.callbacks.append(lambda phase, info: time.sleep(0.001))
        print("ready", flush=True)
        while True:
            gc.collect()
        """
    )
    assert _end(process, signal.SIGINT) == (130, "", "Interrupted.\n")


def test_what_was_printed_is_not_lost_and_a_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "unfinished"
    process = _start(
        f"""
        with signals.removed_on_stop({str(folder)!r}):
            os.mkdir({str(folder)!r})
            print("ready", flush=True)
            print("then", end="")
            while True:
                open({str(folder / "file")!r}, "a").close()
        """
    )
    while not (folder / "file").exists():
        assert process.poll() is None
    assert _end(process, signal.SIGTERM) == (143, "then", "Stopped by SIGTERM.\n")
    assert list(tmp_path.iterdir()) == []


def test_signals_that_were_ignored_stay_ignored() -> None:
    """As `nohup` wants it."""
    process = _start("print('ready', flush=True); time.sleep(0.5)", ignored=signal.SIGHUP)
    assert _end(process, signal.SIGHUP) == (0, "", "")


def test_is_noted_where_something_is_to_be_saved() -> None:
    process = _start(
        """
        with signals.Interrupts("saving after this step") as interrupts:
            interrupts.hold()
            print("ready", flush=True)
            while interrupts.requested is None:
                time.sleep(0.01)
            print("saved on", interrupts.requested)
            sys.exit(signals.ending(0))
        """
    )
    said = "\nSIGHUP: saving after this step\n"
    assert _end(process, signal.SIGHUP) == (0, "saved on SIGHUP\n", said)


def test_second_ctrl_c_stops_now() -> None:
    process = _start(
        f"""
        with signals.Interrupts("saving") as interrupts:
            interrupts.hold()
            print("ready", flush=True)
            {IN_C}
        """
    )
    status, _, said = _end(process, signal.SIGINT, signal.SIGINT)
    assert status == 130
    assert said == "\nSIGINT: saving (Ctrl-C again stops without saving)\nInterrupted.\n"


def test_status_stays_what_it_was_while_python_ends() -> None:
    process = _start(
        """
        class Slow:
            def __del__(self, write=os.write, sleep=time.sleep):
                write(1, b"ready\\n")
                sleep(0.5)
        slow = Slow()
        sys.exit(signals.ending(2))
        """
    )
    assert _end(process, signal.SIGTERM) == (2, "", "")


def test_context_in_a_script_restores_its_handlers() -> None:
    """Without `listen`, as in a notebook, a second Ctrl-C is a KeyboardInterrupt."""
    from mtf.base.signals import Interrupts

    with small.hearing_ctrl_c():
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        with Interrupts() as interrupts:
            interrupts.hold()
            signal.raise_signal(signal.SIGINT)
            assert interrupts.requested == "SIGINT"
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            assert interrupts.requested == "SIGTERM"
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("module", ["mtf.run", "mtf", "mtf.cache"])
def test_ctrl_c_while_a_command_is_imported(tmp_path: Path, module: str) -> None:
    assert _interrupted_at("mtf.cli.command", tmp_path, module) == (130, "Interrupted.\n")


def test_ctrl_c_while_another_program_imports_mtf(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("import mtf.cli.command")
    status, said = _interrupted_at("mtf.cli.command", tmp_path, "other")
    assert status == -signal.SIGINT and said.endswith("KeyboardInterrupt\n")


def _interrupted_at(place: str, folder: Path, module: str) -> tuple[int, str]:
    """Exit status and stderr of `python -m MODULE` with Ctrl-C when it imports `place`."""
    (folder / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {place!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    paths = f"{folder}{os.pathsep}{ROOT}"
    process = small.start_python("-m", module, "--help", PYTHONPATH=paths)
    _, err = process.communicate(timeout=60)
    return process.returncode, err
