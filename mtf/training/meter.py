"""Measures the steps between two reports of statistics."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator

import jax
import numpy as np

from mtf.models.settings import T5Config
from mtf.training.flops import train_step_flops
from mtf.training.metrics import StepMetrics, summarize


@dataclasses.dataclass(frozen=True)
class Report:
    """The statistics of consecutive steps.

    Attributes:
      metrics: the metrics of the loss; see `mtf.training.metrics.summarize`.
      times: T5X's timing metrics, the seconds of each pause, and "timing/tokens_per_second", which
        counts the tokens of both inputs and targets.
      seconds: the mean duration of a step, without pauses.
      tokens: the mean number of input and target positions per step.
      flops: the mean number of FLOPs per step on all devices.
    """

    metrics: dict[str, float]
    times: dict[str, float]
    seconds: float
    tokens: float
    flops: float


class Meter:
    """Collects the metrics of steps, and measures how long these steps take.

    Args:
      network: the network, from whose size the FLOPs of a step are computed.
      batch_size: the number of rows in a global batch.
      setup_seconds: the duration of the setup, for T5X's "timing/init_or_restore_seconds".

    Attributes:
      steps: the metrics of the steps since the last report.
    """

    def __init__(self, network: T5Config, batch_size: int, setup_seconds: float) -> None:
        self._network, self._batch_size = network, batch_size
        self._started = self._period_started = time.perf_counter()
        self._pauses = {"init_or_restore": setup_seconds}
        self._lengths: list[tuple[int, int]] = []
        self.steps: list[StepMetrics] = []

    def restart(self) -> None:
        """Starts the measurement now, so that it excludes all time before."""
        self._period_started = time.perf_counter()

    def add(self, metrics: StepMetrics, lengths: tuple[int, int]) -> None:
        """Adds a step; `lengths` are those of inputs and targets, in tokens."""
        self.steps.append(metrics)
        self._lengths.append(lengths)

    @contextlib.contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Excludes the block from the duration of steps, and adds it to "timing/NAME_seconds".

        A profiler trace shows the block under its name.
        """
        start = time.perf_counter()
        try:
            with jax.profiler.TraceAnnotation(name):
                yield
        finally:
            seconds = time.perf_counter() - start
            self._period_started += seconds
            self._pauses[name] = self._pauses.get(name, 0.0) + seconds

    def report(self) -> Report:
        """Returns the statistics of the steps since the last report, and starts the next period."""
        now = time.perf_counter()
        metrics, num_steps = summarize(self.steps), len(self.steps)
        inputs, targets = np.mean(self._lengths, axis=0)
        seconds = now - self._period_started
        cores, seqs = jax.device_count(), num_steps * self._batch_size
        tokens = self._batch_size * (inputs + targets)
        times = {
            "timing/seconds": seconds,
            "timing/seqs": float(seqs),
            "timing/seqs_per_second": seqs / seconds,
            "timing/seqs_per_second_per_core": seqs / seconds / cores,
            "timing/steps_per_second": num_steps / seconds,
            "timing/target_tokens_per_second": seqs * targets / seconds,
            "timing/target_tokens_per_second_per_core": seqs * targets / seconds / cores,
            "timing/tokens_per_second": num_steps * tokens / seconds,
            "timing/uptime": now - self._started,
            **{f"timing/{name}_seconds": value for name, value in self._pauses.items()},
        }
        flops = np.mean(
            [train_step_flops(self._network, self._batch_size, *x) for x in self._lengths]
        )
        self.steps, self._lengths, self._pauses, self._period_started = [], [], {}, now
        return Report(metrics, times, seconds / num_steps, float(tokens), float(flops))
