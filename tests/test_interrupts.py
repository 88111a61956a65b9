"""SIGTERM, SIGHUP and Ctrl-C: the run saves where it is, says so, and goes on from there."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests import small

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
    assert err.startswith("\nSIGTERM: saving after this step")
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
    arguments = [*_arguments(folder, "hangup"), "trainer.stats_period=1000"]
    with small.start(arguments, folder) as process:
        small.read_until(process.stdout, "compiled")
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0
    (step,) = small.steps(folder / "hangup")
    assert step < LAST_STEP
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
    assert err == "Interrupted.\n"
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
