"""The training loop.

In each step, the loop trains, checks for signals, checks that all values are finite, writes
statistics, evaluates, decides whether to stop early, and saves, in this order.

Evaluation precedes saving, so that the checkpoint of step N contains all metrics of step N. After a
signal, evaluation is skipped or aborted, so that the state is saved immediately. The checkpoint
then lists the evaluations that are still due, and the resumed run performs them first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mtf.base.processes.heartbeat import READING, TRAINING, Heartbeat
from mtf.base.progress import Progress, duration
from mtf.base.signals import Interrupts
from mtf.checkpoints.manager import CheckpointManager, StateNotFiniteError
from mtf.checkpoints.settings import METRIC_KINDS
from mtf.checkpoints.steps import owed_evaluations, owing
from mtf.data.packing import HostBatch, trimmed
from mtf.data.row_streams import BatchIterator, Evaluations
from mtf.models.t5 import Batch
from mtf.partitioning.processes import wait_for_others
from mtf.training.early_stopping import EarlyStopping
from mtf.training.flops import train_step_flops
from mtf.training.metrics import MetricsWriter, summarize, timing
from mtf.training.trackers import Sample
from mtf.training.trackers.tracking import Tracking
from mtf.training.train_state import TrainState
from mtf.training.trainer import Trainer
from mtf.training.watch import Watch

# The metrics of one step, with the names "KIND/…/NAME" under which checkpoints store them.
Measured = dict[str, float]

TRAIN, TRAINING_EVAL, INFERENCE_EVAL = METRIC_KINDS


class Evaluator(Protocol):
    """Evaluates a model by decoding, every `period` steps and after the last step."""

    period: int

    @property
    def samples(self) -> Sequence[Sample]:
        """The held-out examples, with the predictions from the last evaluation."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the evaluated tasks."""

    def evaluate(
        self, params: Any, on_progress: Callable[[int], None]
    ) -> Mapping[str, Mapping[str, float]]:
        """Returns a dict mapping each task to its metrics, a dict mapping names to values.

        After each batch, calls `on_progress` with the number of examples in the batch.
        """


@dataclasses.dataclass
class TrainLoop:
    """Trains a model until step `train_steps`, and evaluates and saves it along the way.

    Attributes:
      batches: the training batches, starting with the batch for the first step.
      train_steps: the last step; steps are counted from the start of pretraining.
      batch_size: the number of rows in a global batch.
      checkpoints: the manager of the checkpoints; metrics are written to its run directory.
      evaluations: a dict mapping names to functions that return the batches of an evaluation. The
        loss is computed on them every `eval_period` steps and after the last step.
      heartbeat: the object that records the status of this process and ends it if it hangs.
      tracking: the trackers, which receive all metrics, samples and paths of checkpoints.
      config_text: the config as text, which is written to the TensorBoard event file.
    """

    trainer: Trainer
    batches: BatchIterator
    train_steps: int
    batch_size: int
    checkpoints: CheckpointManager
    progress: Progress
    interrupts: Interrupts
    evaluations: Evaluations
    evaluator: Evaluator | None = None
    heartbeat: Heartbeat = dataclasses.field(default_factory=Heartbeat)
    tracking: Tracking = dataclasses.field(default_factory=Tracking)
    config_text: str = ""

    def __post_init__(self) -> None:
        self._stop_requested = _Agreement(self.interrupts)
        self._writers: dict[str, MetricsWriter] = {}

    def run(self, state: TrainState, setup_seconds: float) -> tuple[TrainState, str | None]:
        """Trains the model, starting from `state`, and donates the buffers of `state`.

        Returns a tuple of the last state, which has been saved, and the name of the signal that
        ended the run, or None if there was no signal. `setup_seconds` is logged as T5X's metric
        "timing/init_or_restore_seconds". Raises RunError if the loss, the gradients or the state
        are not finite (see `mtf.training.watch`).
        """
        trainer, checkpoints, progress = self.trainer, self.checkpoints, self.progress
        beat = self.heartbeat.beat
        first_step = step = int(state.step)
        started = period_started = time.perf_counter()
        owed = owed_evaluations(checkpoints.model_dir, first_step)
        periods = {
            TRAINING_EVAL: trainer.config.eval_period,
            INFERENCE_EVAL: None if self.evaluator is None else self.evaluator.period,
        }
        period: list[Any] = []
        lengths: list[tuple[int, int]] = []  # (inputs, targets) of each step in `period`
        extra = {"timing/init_or_restore_seconds": setup_seconds}
        stopping = False

        def write_statistics() -> Measured:
            nonlocal period, lengths, extra, period_started
            summary = summarize(period)
            now = time.perf_counter()
            seconds = now - period_started
            num_steps, (inputs, targets) = len(period), np.mean(lengths, axis=0)
            times = timing(num_steps, self.batch_size, inputs, targets, seconds, now - started)
            measured = self._record(TRAIN, step, summary, {**times, **extra})
            loss = summary["loss_per_target_token"]
            flops = np.mean([self._flops(*each) for each in lengths])
            tokens = self.batch_size * (inputs + targets)
            work = seconds / num_steps, float(tokens), float(flops)
            progress.stats(step, loss, summary["accuracy"], *work)
            watch.count_skipped(step, period)
            period, lengths, extra, period_started = [], [], {}, now
            return measured

        with contextlib.ExitStack() as files:
            self._open_metrics(files, first_step, owed)
            watch = Watch(trainer, checkpoints, self._writers[TRAIN], progress)
            early = self._resume_early_stopping(first_step, owed)
            if owed:
                beat("evaluating", step)
                found = self._evaluate(owed, state, step)
                stopping = found is None
                if found is not None:
                    checkpoints.add_measured(step, found)
                    early.measured(step, found)
            while step < self.train_steps and not stopping and not early.is_over:
                # Train. Wait for the previous step, so that the host is at most one step ahead of
                # the devices.
                is_first = step == first_step
                is_new = step <= first_step + 1  # Another process may still be compiling.
                beat("starting" if is_new else READING, step + 1)
                rows = next(self.batches)
                beat("compiling" if is_new else TRAINING, step + 1)
                batch = self._global_batch(rows)
                if period:
                    jax.block_until_ready(period[-1])
                if not trainer.is_compiled(batch):
                    beat("compiling", step + 1)
                    pause = self._compile(state, batch, None if is_first else step + 1)
                    period_started = time.perf_counter() if is_first else period_started + pause
                    extra["timing/compilation_seconds"] = (
                        extra.get("timing/compilation_seconds", 0.0) + pause
                    )
                    beat("compiling" if is_new else TRAINING, step + 1)
                state, metrics = trainer.train_step(state, batch)
                step += 1
                period.append(metrics)
                lengths.append(_lengths(batch))
                progress.tick(step)
                checkpoints.check()
                if len(period) > 1:  # This check does not block, because step - 1 is complete.
                    watch.check(step - 1, period[:-1])

                # Check for signals. After a signal, write statistics and save the state.
                stopping = self._stop_requested()
                last = step == self.train_steps
                measured: Measured = {}
                due = tuple(k for k, n in periods.items() if n and (step % n == 0 or last))
                saves = checkpoints.due(step) or last or stopping
                reports = step % trainer.config.stats_period == 0 or last or stopping
                if reports or due or saves:
                    watch.check(step, period)

                # Write statistics.
                if reports:
                    measured |= write_statistics()

                # Evaluate.
                pause = time.perf_counter()
                if due:
                    beat("evaluating", step)
                    found = None if stopping else self._evaluate(due, state, step)
                    stopping |= found is None
                    saves |= found is None
                    measured |= owing(due) if found is None else found
                    extra["timing/evaluate_seconds"] = time.perf_counter() - pause

                # Stop early.
                early.measured(step, measured)
                if early.is_over:
                    saves = True
                    progress.note(f"step {step}: training ends early: {early}")
                if (stopping or early.is_over) and period:
                    measured |= write_statistics()

                # Save.
                if saves:
                    beat("saving", step)
                    start = time.perf_counter()
                    try:
                        self._save(step, state, measured)
                    except StateNotFiniteError as error:
                        raise watch.failure(str(error)) from None
                    extra["timing/checkpoint_seconds"] = time.perf_counter() - start
                period_started += time.perf_counter() - pause

            beat("saving", step)
            checkpoints.wait()
        beat("finishing", step)
        return state, self.interrupts.requested or (
            "another process's signal" if stopping else None
        )

    def _global_batch(self, rows: HostBatch) -> Batch:
        if self.trainer.config.trim_padding and jax.process_count() == 1:
            rows = trimmed(rows)
        return self.trainer.partitioner.global_batch(rows, self.batch_size)

    def _compile(self, state: TrainState, batch: Batch, later_step: int | None) -> float:
        """Compiles the training step for the shapes of a batch; returns the time in seconds."""
        if later_step is None:
            self.progress.note("compiling …")
        start = time.perf_counter()
        self.trainer.compile(state, batch)
        seconds = time.perf_counter() - start
        text = f"compiled in {duration(seconds)}"
        if later_step is None:
            wait_for_others()
            self.interrupts.hold()
        else:
            inputs, targets = _lengths(batch)
            text = f"step {later_step}: rows of {inputs}/{targets} tokens, {text}"
        self.progress.note(text)
        return seconds

    def _flops(self, inputs_length: int, targets_length: int) -> float:
        network = self.trainer.model.network
        return train_step_flops(network, self.batch_size, inputs_length, targets_length)

    def _resume_early_stopping(self, first_step: int, owed: Iterable[str]) -> EarlyStopping:
        """Returns the early-stopping counts at `first_step`, without the evaluations in `owed`."""
        save, patience = self.checkpoints.config, self.trainer.config.early_stopping_patience
        kind = (save.metric_name_to_monitor or "").partition("/")[0]
        last_step = first_step - (kind in owed)
        return EarlyStopping.resumed(self.checkpoints.model_dir, save, patience, last_step)

    def _open_metrics(
        self, files: contextlib.ExitStack, first_step: int, owed: Iterable[str]
    ) -> None:
        """Opens the metrics files; drops lines after `first_step`, or from it on if owed."""
        evaluator_names = () if self.evaluator is None else self.evaluator.names
        last_steps = {TRAIN: first_step}
        for kind, names in ((TRAINING_EVAL, self.evaluations), (INFERENCE_EVAL, evaluator_names)):
            last_steps |= {f"{kind}/{name}": first_step - (kind in owed) for name in names}
        for folder, last_step in last_steps.items():
            log = functools.partial(self.tracking.log_metrics, folder)
            writer = MetricsWriter(self.checkpoints.model_dir / folder, last_step, log)
            self._writers[folder] = files.enter_context(writer)
        if self.config_text:  # T5X uses the same tag.
            self._writers[TRAIN].write_text(first_step, "config", self.config_text)

    def _record(
        self, folder: str, step: int, metrics: Mapping[str, float], extra: Measured | None = None
    ) -> Measured:
        """Writes `metrics` and `extra`; returns `metrics` under the names used in checkpoints."""
        self._writers[folder].write(step, {**metrics, **(extra or {})})
        return {f"{folder}/{name}": value for name, value in metrics.items()}

    def _evaluate(self, kinds: Iterable[str], state: TrainState, step: int) -> Measured | None:
        """Runs the given kinds of evaluation; returns their metrics, or None after a signal."""
        measured: Measured = {}
        try:
            for name, batches in self.evaluations.items() if TRAINING_EVAL in kinds else ():
                measured |= self._evaluate_loss(name, batches(), state, step)
            if INFERENCE_EVAL in kinds and self.evaluator is not None:
                evaluate, check = self.evaluator.evaluate, lambda _: self._raise_if_requested()
                for name, scores in evaluate(
                    self.trainer.eval_params(state), on_progress=check
                ).items():
                    measured |= self._record(f"{INFERENCE_EVAL}/{name}", step, scores)
                    shown = "  ".join(f"{score} {value:.2f}" for score, value in scores.items())
                    self.progress.note(f"step {step}  {name}, decoded: {shown}")
                if self.evaluator.samples:
                    self.tracking.log_samples(step, self.evaluator.samples)
        except _StopRequested:
            return None
        return measured

    def _evaluate_loss(
        self, name: str, batches: Iterator[HostBatch], state: TrainState, step: int
    ) -> Measured:
        """Returns loss metrics without dropout (T5X: `train_eval`); {} if there are no batches."""
        trainer = self.trainer
        sums: list[Any] = []
        params = trainer.eval_params(state)
        for rows in batches:
            if trainer.config.eval_steps is not None and len(sums) == trainer.config.eval_steps:
                break
            batch = self._global_batch(rows)
            if sums:
                jax.block_until_ready(sums[-1])  # Keep the host at most one batch ahead.
            wait_for_others()
            sums.append(trainer.eval_step(params, batch))
            self._raise_if_requested()
        if not sums:
            return {}
        summary = summarize(sums)
        loss, accuracy = summary["loss_per_target_token"], summary["accuracy"]
        measured = self._record(f"{TRAINING_EVAL}/{name}", step, summary)
        self.progress.note(f"step {step}  {name}: loss {loss:.4f}  accuracy {accuracy:.3f}")
        if not math.isfinite(loss):
            self.progress.note(
                f"step {step}  {name}: the loss is not finite, although the training loss is finite"
            )
        return measured

    def _raise_if_requested(self) -> None:
        self.heartbeat.beat("evaluating", self.heartbeat.step)
        if self._stop_requested():
            raise _StopRequested

    def _save(self, step: int, state: TrainState, measured: Measured) -> None:
        monitored = self.checkpoints.config.metric_name_to_monitor
        if monitored is not None and not math.isfinite(measured.get(monitored, 0.0)):
            self.progress.note(
                f"step {step}: {monitored} is {measured[monitored]:g}, so this checkpoint cannot "
                "be the best"
            )
        for writer in self._writers.values():
            writer.flush()  # A resumed run appends to these files, from the checkpoint's step on.
        self.checkpoints.save(step, state.state_dict(), self.batches.get_state(), measured)
        self.tracking.log_checkpoint(step, self.checkpoints.path(step))


def _lengths(batch: Batch) -> tuple[int, int]:
    """Returns the lengths of a batch's inputs and targets in tokens."""
    return batch["encoder_input_tokens"].shape[1], batch["decoder_target_tokens"].shape[1]


class _StopRequested(Exception):
    """Raised to end an evaluation after a signal."""


class _Agreement:
    """Decides whether to stop because a process received a signal.

    The decision is the same on all processes. A reduction over all devices combines the flags of
    the processes. Its result is read on the next call, so that no step waits for the reduction.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._before: jax.Array | None = None
        mesh = Mesh(np.array(jax.devices()), ("all",))
        self._split = NamedSharding(mesh, PartitionSpec("all"))
        self._any = jax.jit(jax.numpy.any, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(self) -> bool:
        requested = self._interrupts.requested is not None
        if jax.process_count() == 1:
            return requested
        local = np.full(jax.local_device_count(), requested)
        before = self._before
        self._before = self._any(jax.make_array_from_process_local_data(self._split, local))
        return before is not None and bool(before)
