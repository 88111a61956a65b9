"""Writes profiler traces of training steps, which TensorBoard and Perfetto open."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import jax

from mtf.base.progress import Progress
from mtf.base.writing import write_atomically
from mtf.checkpoints.steps import StepChoice, chosen_steps
from mtf.storage import AnyPath
from mtf.training.meter import Meter
from mtf.training.settings import SIGNAL_TO_PROFILE

# The number of steps that are traced after a signal.
STEPS_PER_SIGNAL = 3
# TensorBoard looks for traces in this directory.
_FOLDER = "plugins/profile"


class Profiler(contextlib.AbstractContextManager["Profiler"]):
    """Traces the steps that `trainer.profile` chooses, in this process.

    Consecutive steps are in one trace, with what the loop does between them. A trace of steps from
    N on consists of the files `PROCESS.xplane.pb` for TensorBoard, `PROCESS.trace.json.gz` for
    Perfetto, and `PROCESS.memory.pprof` in `RUN_DIR/profile/plugins/profile/step_N/`.

    Args:
      profile: see `TrainerConfig`.
      run_dir: the run directory.
      meter: the meter of the run, which does not count the time that writing takes.
      progress: where to print that a trace has been written.
    """

    def __init__(
        self, profile: StepChoice | None, run_dir: AnyPath, meter: Meter, progress: Progress
    ) -> None:
        self._by_signal = profile == SIGNAL_TO_PROFILE
        by_step = () if profile is None or self._by_signal else chosen_steps(profile, "")
        self._chosen: Container[int] = by_step
        self._folder, self._meter, self._progress = run_dir / "profile", meter, progress
        self._num_signalled = 0
        self._handler: Any = None
        self._trace: contextlib.ExitStack | None = None

    def __enter__(self) -> Profiler:
        # Only the main thread can set a handler.
        if self._by_signal and threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGUSR1, self._on_signal)
            signal.siginterrupt(signal.SIGUSR1, False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGUSR1, self._handler)
        if self._trace is not None:
            self._trace.close()

    def _on_signal(self, *_: object) -> None:
        self._num_signalled = STEPS_PER_SIGNAL

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[list[Any]]:
        """Traces the block, which is a training step, if the step is chosen.

        Yields a list, to which the block appends arrays. If the trace ends with this step, it ends
        when these arrays have been computed.
        """
        is_chosen = step in self._chosen or self._num_signalled > 0
        if is_chosen and self._trace is None:
            self._trace = contextlib.ExitStack()
            with self._meter.pause("profile"):
                self._trace.enter_context(self._traced(step))
        results: list[Any] = []
        if self._trace is None:
            yield results
            return
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            yield results
        self._num_signalled -= self._num_signalled > 0
        if step + 1 not in self._chosen and not self._num_signalled:
            jax.block_until_ready(results)
            with self._meter.pause("profile"):
                self._trace.close()
            self._trace = None

    @contextlib.contextmanager
    def _traced(self, first_step: int) -> Iterator[None]:
        """Traces the block, and writes the trace."""
        with tempfile.TemporaryDirectory(prefix="mtf-") as name:
            # Tracing each call of a Python function would slow down the reading of data.
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            with jax.profiler.trace(name, create_perfetto_trace=True, profiler_options=options):
                yield
            files = list(Path(name).glob(f"{_FOLDER}/*/*"))
            jax.profiler.save_device_memory_profile(str(Path(name) / "memory"))
            parts = {
                "xplane.pb": next(f for f in files if f.name.endswith(".xplane.pb")),
                "trace.json.gz": next(f for f in files if f.name == "perfetto_trace.json.gz"),
                "memory.pprof": Path(name) / "memory",
            }
            folder = self._folder / _FOLDER / f"step_{first_step}"
            folder.mkdir(parents=True, exist_ok=True)
            for end, file in parts.items():
                target = folder / f"process_{jax.process_index()}.{end}"
                write_atomically(target, file.read_bytes())
        self._progress.note(
            f"profile from step {first_step} on: {folder}; to see it, install xprof and run: "
            f"tensorboard --logdir {self._folder}"
        )
