"""The training loop. In each step, in this order:

    train → count → hear signals → look whether all is finite → statistics → evaluate → save

Evaluation comes before saving, so that a checkpoint of step N stands for everything that step N
has to show.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax

from mtf.checkpoints.manager import CheckpointManager, StateNotFiniteError
from mtf.data.row_streams import BatchIterator
from mtf.training.interrupts import Interrupts
from mtf.training.metrics import MetricsWriter, summarize, timing
from mtf.training.progress import Progress, duration
from mtf.training.train_state import TrainState
from mtf.training.trainer import Trainer
from mtf.training.watch import Watch

# Name of an evaluation → its batches, anew at each call.
Evaluations = Mapping[str, Callable[[], Iterable[Any]]]
# "KIND/…/NAME" → a metric of one step, as checkpoints are told by.
Measured = dict[str, float]


class InferEvaluator(Protocol):
    """What evaluates every `period` steps and at the end, by decoding."""

    period: int

    @property
    def names(self) -> tuple[str, ...]:
        """What is evaluated."""

    def evaluate(self, params: Any) -> Mapping[str, Mapping[str, float]]:
        """Name → metric → value, with these parameters."""


def evaluation_dir(run_dir: Path, name: str) -> Path:
    """Where an evaluation during training writes its metrics."""
    return run_dir / "training_eval" / name


def inference_dir(run_dir: Path, name: str) -> Path:
    """Where an evaluation by decoding writes its metrics."""
    return run_dir / "inference_eval" / name


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
    evaluator: InferEvaluator | None = None,
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
      evaluator: evaluates by decoding.

    Returns:
      The last state, and the name of the signal that ended training early, if one did.

    Raises:
      RunError: loss, gradients or state are no longer finite (`mtf.training.watch`).
    """
    config, partitioning = trainer.config, trainer.partitioning
    first_step = step = int(state.step)
    started = period_started = time.perf_counter()
    period: list[Any] = []
    extra = {"timing/init_or_restore_seconds": setup_seconds}
    stopping = False
    with contextlib.ExitStack() as stack, Interrupts() as interrupts:

        def write_to(directory: Path) -> MetricsWriter:
            return stack.enter_context(MetricsWriter(directory, first_step))

        writer = write_to(run_dir / "train")
        eval_writers = {name: write_to(evaluation_dir(run_dir, name)) for name in evaluations}
        inference_writers = {
            name: write_to(inference_dir(run_dir, name))
            for name in (evaluator.names if evaluator is not None else ())
        }
        watch = Watch(trainer, run_dir, checkpoints, writer, progress)
        while step < train_steps and not stopping:
            # Train. The step before is waited for, so that the host is one step ahead, no more.
            batch = partitioning.global_batch(next(batches), batch_size)
            if step == first_step:
                extra["timing/compilation_seconds"] = _compile(trainer, state, batch, progress)
                period_started = time.perf_counter()
            if period:
                jax.block_until_ready(period[-1])
            state, metrics = trainer.train_step(state, batch)
            step += 1
            period.append(metrics)
            progress.tick(step)
            if len(period) > 1:  # Free: that step is done, and the devices are at work.
                watch.check(step - 1, period, len(period) - 1)

            # Hear signals. What there is so far is recorded and saved then, as at the end.
            stopping = _stop_asked(interrupts, checkpoints, step)
            last = step == train_steps
            measured: Measured = {}
            saves = checkpoints.due(step) or last or stopping
            evaluates = config.eval_period is not None and (step % config.eval_period == 0 or last)
            decodes = evaluator is not None and (step % evaluator.period == 0 or last)
            reports = step % config.stats_period == 0 or last or stopping
            if reports or evaluates or decodes or saves:
                watch.check(step, period, len(period))

            # Statistics.
            if reports:
                summary = summarize(period)
                now = time.perf_counter()
                seconds = now - period_started
                length = batch["decoder_target_tokens"].shape[1]
                times = timing(len(period), batch_size, length, seconds, now - started)
                writer.write(step, {**summary, **times, **extra})
                measured |= _named("train", summary)
                loss = summary["loss_per_target_token"]
                progress.stats(step, loss, summary["accuracy"], seconds / len(period))
                watch.count_skipped(step, period)
                period, extra = [], {}
                period_started = now

            # Evaluate.
            pause = time.perf_counter()
            if evaluates:
                measured |= evaluate(
                    trainer, state, evaluations, eval_writers, step, batch_size, progress
                )
                extra["timing/evaluate_seconds"] = time.perf_counter() - pause
            if evaluator is not None and decodes:
                measured |= infer_evaluate(evaluator, state, inference_writers, step, progress)
                extra["timing/evaluate_seconds"] = time.perf_counter() - pause

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
    return state, None if step >= train_steps else interrupts.requested or "preemption"


def evaluate(
    trainer: Trainer,
    state: TrainState,
    evaluations: Evaluations,
    writers: dict[str, MetricsWriter],
    step: int,
    batch_size: int,
    progress: Progress,
) -> Measured:
    """The loss on each evaluation's batches, without dropout (T5X: `train_eval`)."""
    measured: Measured = {}
    for name, make_batches in evaluations.items():
        sums: list[Any] = []
        for rows in make_batches():
            if trainer.config.eval_steps is not None and len(sums) == trainer.config.eval_steps:
                break
            batch = trainer.partitioning.global_batch(rows, batch_size)
            sums.append(trainer.eval_step(state.params, batch))
        if sums:
            summary = summarize(sums)
            writers[name].write(step, summary)
            loss, accuracy = summary["loss_per_target_token"], summary["accuracy"]
            progress.note(f"step {step}  {name}: loss {loss:.4f}  accuracy {accuracy:.3f}")
            if not math.isfinite(loss):
                progress.note(f"step {step}  {name}: this loss is not finite; that of training is")
            measured |= _named(f"training_eval/{name}", summary)
    return measured


def infer_evaluate(
    evaluator: InferEvaluator,
    state: TrainState,
    writers: dict[str, MetricsWriter],
    step: int,
    progress: Progress,
) -> Measured:
    """What the evaluator's decoded texts are worth (T5X: `infer_eval`)."""
    measured: Measured = {}
    for name, scores in evaluator.evaluate(state.params).items():
        writers[name].write(step, scores)
        shown = "  ".join(f"{score} {value:.2f}" for score, value in scores.items())
        progress.note(f"step {step}  {name}, decoded: {shown}")
        measured |= _named(f"inference_eval/{name}", scores)
    return measured


def _named(place: str, metrics: Mapping[str, float]) -> Measured:
    return {f"{place}/{name}": value for name, value in metrics.items()}


def _compile(trainer: Trainer, state: TrainState, batch: Any, progress: Progress) -> float:
    start = time.perf_counter()
    progress.note("compiling …")
    _interruptibly(lambda: trainer.compile(state, batch))
    seconds = time.perf_counter() - start
    progress.note(f"compiled in {duration(seconds)}")
    return seconds


def _interruptibly(work: Callable[[], object]) -> None:
    """Does what stays outside of Python for minutes, and hears signals meanwhile.

    Python handles signals in the main thread only, between two of its own instructions.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="compile", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


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
    checkpoints.save(step, state, batches.get_state(), measured)
    return time.perf_counter() - start


def _stop_asked(interrupts: Interrupts, checkpoints: CheckpointManager, step: int) -> bool:
    """Whether to stop; where there are several processes, all of them agree on it."""
    if jax.process_count() == 1:
        return interrupts.requested is not None
    return checkpoints.reached_preemption(step)
