"""The training loop. In each step, in this order:

    train → count → hear signals → look whether all is finite → statistics → evaluate → save

Evaluation comes before saving, so that a checkpoint of step N stands for everything that step N
has to show. A signal skips or ends the evaluation, so that saving comes at once; the checkpoint
then says that its evaluation is owed, and the run that continues from it begins with that.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mtf.checkpoints.manager import CheckpointManager, StateNotFiniteError
from mtf.checkpoints.steps import owed_evaluations, owing
from mtf.data.row_streams import BatchIterator, Evaluations
from mtf.progress import Progress, duration
from mtf.signals import Interrupts
from mtf.training.metrics import MetricsWriter, summarize, timing
from mtf.training.train_state import TrainState
from mtf.training.trainer import Trainer
from mtf.training.watch import Watch

# Name of an evaluation → its batches, anew at each call.
# "KIND/…/NAME" → a metric of one step, as checkpoints are told by.
Measured = dict[str, float]

TRAINING_EVAL, INFERENCE_EVAL = "training_eval", "inference_eval"
# What a signal is answered with.
SAVING = "saving after this step"


class Evaluator(Protocol):
    """What evaluates every `period` steps and at the end, by decoding."""

    period: int

    @property
    def names(self) -> tuple[str, ...]:
        """What is evaluated."""

    def evaluate(
        self, params: Any, on_progress: Callable[[int], None] | None = None
    ) -> Mapping[str, Mapping[str, float]]:
        """Name → metric → value, with these parameters.

        Args:
          params: of the network.
          on_progress: called after each batch with its number of examples.
        """


def evaluation_dir(run_dir: Path, name: str) -> Path:
    """Returns where an evaluation during training writes its metrics."""
    return run_dir / TRAINING_EVAL / name


def inference_dir(run_dir: Path, name: str) -> Path:
    """Returns where an evaluation by decoding writes its metrics."""
    return run_dir / INFERENCE_EVAL / name


def train(
    trainer: Trainer,
    state: TrainState,
    batches: BatchIterator,
    *,
    train_steps: int,
    batch_size: int,
    run_dir: Path,
    checkpoints: CheckpointManager,
    evaluations: Evaluations,
    progress: Progress,
    setup_seconds: float,
    interrupts: Interrupts,
    evaluator: Evaluator | None = None,
) -> tuple[TrainState, str | None]:
    """Trains from the state's step up to `train_steps`.

    Args:
      trainer: the compiled steps.
      state: where to begin; its memory is taken over.
      batches: positioned after the state's step.
      train_steps: absolute, as in T5X.
      batch_size: of the global batch.
      run_dir: where metrics go.
      checkpoints: where states go.
      evaluations: what to evaluate on every `eval_period` steps and at the end.
      progress: where lines go.
      setup_seconds: for T5X's metric timing/init_or_restore_seconds.
      interrupts: hears signals, from the first step on at the latest.
      evaluator: evaluates by decoding.

    Returns:
      The last state, which is saved, and what asked to stop, if anything did.

    Raises:
      RunError: loss, gradients or state are no longer finite (`mtf.training.watch`).
    """
    config, partitioner = trainer.config, trainer.partitioner
    first_step = step = int(state.step)
    started = period_started = time.perf_counter()
    asked = _Agreement(interrupts)
    owed = owed_evaluations(run_dir, first_step)
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(MetricsWriter(run_dir / "train", first_step))
        evaluating = _Evaluating(
            trainer,
            evaluations,
            evaluator,
            run_dir,
            first_step,
            owed,
            batch_size,
            progress,
            asked,
            stack,
        )
        watch = Watch(trainer, run_dir, checkpoints, writer, progress)
        period: list[Any] = []
        extra = {"timing/init_or_restore_seconds": setup_seconds}
        stopping = False

        def write_statistics() -> Measured:
            nonlocal period, extra, period_started
            summary = summarize(period)
            now = time.perf_counter()
            seconds = now - period_started
            length = batch["decoder_target_tokens"].shape[1]
            times = timing(len(period), batch_size, length, seconds, now - started)
            writer.write(step, {**summary, **times, **extra})
            loss = summary["loss_per_target_token"]
            progress.stats(step, loss, summary["accuracy"], seconds / len(period))
            watch.count_skipped(step, period)
            period, extra = [], {}
            period_started = now
            return _named("train", summary)

        if owed:
            made_up = evaluating.run(owed, state, step)
            stopping = made_up is None
            if made_up is not None:
                checkpoints.add_measured(step, made_up)
        while step < train_steps and not stopping:
            # Train. The step before is waited for, so that the host is one step ahead, no more.
            batch = partitioner.global_batch(next(batches), batch_size)
            if step == first_step:
                extra["timing/compilation_seconds"] = _compile(trainer, state, batch, progress)
                period_started = time.perf_counter()
                interrupts.hold()
            if period:
                jax.block_until_ready(period[-1])
            state, metrics = trainer.train_step(state, batch)
            step += 1
            period.append(metrics)
            progress.tick(step)
            checkpoints.check()
            if len(period) > 1:  # Free: that step is done, and the devices are at work.
                watch.check(step - 1, period, len(period) - 1)

            # Hear signals. What there is so far is recorded and saved then, as at the end.
            stopping = asked()
            last = step == train_steps
            measured: Measured = {}
            due = evaluating.due(step, last=last)
            saves = checkpoints.due(step) or last or stopping
            reports = step % config.stats_period == 0 or last or stopping
            if reports or due or saves:
                watch.check(step, period, len(period))

            # Statistics.
            if reports:
                measured |= write_statistics()

            # Evaluate.
            pause = time.perf_counter()
            if due:
                found = None if stopping else evaluating.run(due, state, step)
                stopping |= found is None
                saves |= found is None
                measured |= owing(due) if found is None else found
                extra["timing/evaluate_seconds"] = time.perf_counter() - pause
                if stopping and period:
                    measured |= write_statistics()

            # Save.
            if saves:
                try:
                    extra["timing/checkpoint_seconds"] = _save(
                        checkpoints, step, state, batches, measured, progress
                    )
                except StateNotFiniteError as error:
                    raise watch.failure(str(error)) from None
            period_started += time.perf_counter() - pause

        checkpoints.wait()
    stopped = interrupts.requested or ("another process's signal" if stopping else None)
    return state, stopped


class _Agreement:
    """Says whether to stop. All of several processes give the same answer at the same call.

    What one of them has heard, the others learn by a reduction over all devices, which is read one
    call later, so that no step waits for it.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._before: jax.Array | None = None
        mesh = Mesh(np.array(jax.devices()), ("all",))
        self._of_each = NamedSharding(mesh, PartitionSpec("all"))
        self._any = jax.jit(jax.numpy.any, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(self) -> bool:
        asked = self._interrupts.requested is not None
        if jax.process_count() == 1:
            return asked
        local = np.full(jax.local_device_count(), asked)
        before, self._before = (
            self._before,
            self._any(jax.make_array_from_process_local_data(self._of_each, local)),
        )
        return before is not None and bool(before)


class _Evaluating:
    """The evaluations of a run, with the files that they write."""

    def __init__(
        self,
        trainer: Trainer,
        evaluations: Evaluations,
        evaluator: Evaluator | None,
        run_dir: Path,
        first_step: int,
        owed: Sequence[str],
        batch_size: int,
        progress: Progress,
        asked: Callable[[], bool],
        files: contextlib.ExitStack,
    ) -> None:
        """Lines of step `first_step` are kept unless they are `owed`; `files` closes the files."""
        self._trainer, self._evaluations, self._evaluator = trainer, evaluations, evaluator
        self._batch_size, self._progress, self._asked = batch_size, progress, asked

        def writers(kind: str, names: Iterable[str]) -> dict[str, MetricsWriter]:
            folder = {TRAINING_EVAL: evaluation_dir, INFERENCE_EVAL: inference_dir}[kind]
            last_step = first_step - (kind in owed)
            return {
                name: files.enter_context(MetricsWriter(folder(run_dir, name), last_step))
                for name in names
            }

        self._writers = {
            TRAINING_EVAL: writers(TRAINING_EVAL, evaluations),
            INFERENCE_EVAL: writers(INFERENCE_EVAL, () if evaluator is None else evaluator.names),
        }

    def due(self, step: int, *, last: bool) -> tuple[str, ...]:
        """Returns the kinds of evaluation that step N has."""
        periods = {
            TRAINING_EVAL: self._trainer.config.eval_period,
            INFERENCE_EVAL: None if self._evaluator is None else self._evaluator.period,
        }
        return tuple(
            kind
            for kind, period in periods.items()
            if period is not None and (step % period == 0 or last)
        )

    def run(self, kinds: Iterable[str], state: TrainState, step: int) -> Measured | None:
        """Returns what some kinds of evaluation measure; None: a signal came before the end."""
        measured: Measured = {}
        try:
            if TRAINING_EVAL in kinds:
                measured |= self._losses(state, step)
            if INFERENCE_EVAL in kinds:
                measured |= self._decoded(state, step)
        except _StopAsked:
            return None
        return measured

    def _losses(self, state: TrainState, step: int) -> Measured:
        """Returns the loss on each evaluation's batches, without dropout (T5X: `train_eval`)."""
        measured: Measured = {}
        trainer = self._trainer
        for name, make_batches in self._evaluations.items():
            sums: list[Any] = []
            for rows in make_batches():
                if trainer.config.eval_steps is not None and len(sums) == trainer.config.eval_steps:
                    break
                batch = trainer.partitioner.global_batch(rows, self._batch_size)
                if sums:
                    jax.block_until_ready(sums[-1])  # as in training
                sums.append(trainer.eval_step(state.params, batch))
                self._check()
            if sums:
                summary = summarize(sums)
                self._writers[TRAINING_EVAL][name].write(step, summary)
                loss, accuracy = summary["loss_per_target_token"], summary["accuracy"]
                self._progress.note(
                    f"step {step}  {name}: loss {loss:.4f}  accuracy {accuracy:.3f}"
                )
                if not math.isfinite(loss):
                    self._progress.note(
                        f"step {step}  {name}: this loss is not finite; that of training is"
                    )
                measured |= _named(f"{TRAINING_EVAL}/{name}", summary)
        return measured

    def _decoded(self, state: TrainState, step: int) -> Measured:
        """Returns what the evaluator's decoded texts are worth (T5X: `infer_eval`)."""
        measured: Measured = {}
        if self._evaluator is None:
            return measured
        found = self._evaluator.evaluate(state.params, on_progress=lambda _: self._check())
        for name, scores in found.items():
            self._writers[INFERENCE_EVAL][name].write(step, scores)
            shown = "  ".join(f"{score} {value:.2f}" for score, value in scores.items())
            self._progress.note(f"step {step}  {name}, decoded: {shown}")
            measured |= _named(f"{INFERENCE_EVAL}/{name}", scores)
        return measured

    def _check(self) -> None:
        if self._asked():
            raise _StopAsked


class _StopAsked(Exception):
    """An evaluation is left for the sake of a signal."""


def _named(place: str, metrics: Mapping[str, float]) -> Measured:
    return {f"{place}/{name}": value for name, value in metrics.items()}


def _compile(trainer: Trainer, state: TrainState, batch: Any, progress: Progress) -> float:
    start = time.perf_counter()
    progress.note("compiling …")
    trainer.compile(state, batch)
    seconds = time.perf_counter() - start
    progress.note(f"compiled in {duration(seconds)}")
    return seconds


def _save(
    checkpoints: CheckpointManager,
    step: int,
    state: TrainState,
    batches: BatchIterator,
    measured: Measured,
    progress: Progress,
) -> float:
    start = time.perf_counter()
    monitored = checkpoints.config.metric_name_to_monitor
    if monitored is not None and not math.isfinite(measured.get(monitored, 0.0)):
        progress.note(
            f"step {step}: {monitored} is {measured[monitored]:g}, so this checkpoint is not "
            "counted among the best"
        )
    checkpoints.save(step, state.state_dict(), batches.get_state(), measured)
    return time.perf_counter() - start
