"""The training loop.

In each step, the loop trains, checks for signals, checks that all values are finite, writes
statistics, evaluates, decides whether to stop early, and saves, in this order.

Evaluation precedes saving, so that the checkpoint of step N contains all metrics of step N.

A signal is only noted; the loop looks for it in each step and during evaluations. The step in
progress is completed and saved. Evaluations that are due are skipped, and one in progress is
aborted and repeated as a whole. The checkpoint lists them, and the resumed run performs them first.

Step N is the N-th update since the start of pretraining; a state of step N has had N updates. The
position in the data that is saved with it is that of the batch for step N + 1.

All processes run the same hooks. They wait for each other before the first step, when they look for
a signal, and in saves. Process 0 writes the metrics; each process writes its part of a checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Iterator, Sequence

import jax

from mtf.base.processes.heartbeat import READING, TRAINING, Heartbeat
from mtf.base.progress import Progress, duration, waiting
from mtf.base.signals import Interrupts
from mtf.checkpoints.manager import CheckpointManager
from mtf.checkpoints.steps import owed_evaluations
from mtf.data.row_streams import BatchIterator
from mtf.data.row_streams import Evaluations as LossEvaluations
from mtf.models.t5 import Batch
from mtf.partitioning.processes import AnyProcess, wait_for_others
from mtf.training.early_stopping import EarlyStopping
from mtf.training.evaluations import (
    INFERENCE_EVAL,
    TRAIN,
    TRAINING_EVAL,
    DecodedEvaluation,
    Evaluation,
    Evaluator,
    LossEvaluation,
    StopRequested,
)
from mtf.training.hooks import (
    EVALUATING,
    SAVING,
    Evaluate,
    FinishedStep,
    Hook,
    Report,
    Save,
    StopEarly,
)
from mtf.training.meter import Meter
from mtf.training.metrics import MetricsFiles, MetricsWriter
from mtf.training.profiling import Profiler
from mtf.training.trackers.tracking import Tracking
from mtf.training.train_state import TrainState
from mtf.training.trainer import Metrics, Trainer
from mtf.training.watch import Watch

COMPILING = "compiling"
ANOTHER_SIGNAL = "another process's signal"
# In the first two steps, other processes may still be starting or compiling: the first step is
# only waited for in the second. The heartbeat gives these phases more time.
_AT_FIRST = {READING: "starting", TRAINING: COMPILING}


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
      evaluator: decodes held-out inputs and computes metrics of the texts; None to disable this.
      interrupts: notes signals; a second Ctrl-C ends the process without saving. It is held from
        the first compiled step on, or, with several processes, from the start; before, a signal
        ends the process.
      heartbeat: records what this process is doing. Its thread ends the process if it makes no
        progress for `trainer.hang_seconds`; `_enter` and `_check_stop` report progress.
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
    evaluations: LossEvaluations
    evaluator: Evaluator | None = None
    heartbeat: Heartbeat = dataclasses.field(default_factory=Heartbeat)
    tracking: Tracking = dataclasses.field(default_factory=Tracking)
    config_text: str = ""

    def __post_init__(self) -> None:
        self._start_step, self._is_new = 0, self.checkpoints.latest_step() is None
        self._stop_requested = AnyProcess(lambda: self.interrupts.requested is not None)

    def run(self, state: TrainState, setup_seconds: float) -> tuple[TrainState, str | None]:
        """Trains the model, starting from `state`, and donates the buffers of `state`.

        Returns a tuple of the last state, which has been saved, and the name of the signal that
        ended the run, or None if there was no signal. `setup_seconds` is logged as T5X's metric
        "timing/init_or_restore_seconds". Raises RunError if the loss, the gradients or the state
        are not finite (see `mtf.training.watch`); such a state is never saved.
        """
        self._start_step = step = int(state.step)
        owed = self._due_before_training()
        early = self._resume_early_stopping(owed)
        meter = Meter(self.trainer.model.network, self.batch_size, setup_seconds)
        with self._open_metrics(owed) as files, self._profiler(meter) as profiler:
            watch = Watch(self.trainer, self.checkpoints, files[TRAIN], self.progress)
            report = Report(self.trainer.config.stats_period, meter, watch, files, self.progress)
            evaluate = [Evaluate(each, meter, self._check_stop) for each in self._kinds(files)]
            stop_early = StopEarly(early, self.progress)
            save = Save(self.checkpoints, self.batches, meter, watch, files, self.tracking)
            # What happens after a step, in this order. If evaluation or early stopping ends the
            # run, the second `report` writes the statistics of the steps since the last one.
            hooks: list[Hook] = [report, *evaluate, stop_early, report, save]

            is_stopped = not self._evaluate_owed(owed, evaluate, state, early)
            while step < self.train_steps and not is_stopped and not early.is_over:
                # Train.
                step += 1
                with profiler.step(step) as results:
                    state, metrics = self._train(step, state, meter)
                    results.append(metrics)
                # Check for signals, and for an error of a save in the background. Check that all
                # values of the step before are finite, and, if they are about to be used, those of
                # this step, for which the check waits.
                is_last, is_stopped = step == self.train_steps, self._stop_requested()
                done = FinishedStep(step, state, is_last=is_last, is_stopped=is_stopped)
                self.checkpoints.check()
                watch.check(step - 1, meter.steps[:-1])
                if any(hook.is_due(done) for hook in hooks):
                    watch.check(step, meter.steps)
                # Write statistics, evaluate, stop early, save.
                for hook in hooks:
                    if hook.is_due(done):
                        self._enter(hook.phase, step)
                        hook.run(done)
                is_stopped = done.is_stopped
            self._enter(SAVING, step)
            with waiting("saving", shown=not self.progress.quiet):
                self.checkpoints.wait()
        self._enter("finishing", step)
        if jax.process_count() == 1:  # Several processes agree on signals only in steps.
            is_stopped = self._stop_requested()
        return state, (self.interrupts.requested or ANOTHER_SIGNAL) if is_stopped else None

    def _train(self, step: int, state: TrainState, meter: Meter) -> tuple[TrainState, Metrics]:
        """Reads a batch and starts a step; returns the next state and the metrics of the step."""
        self._enter(READING, step)
        with jax.profiler.TraceAnnotation("read a batch"):
            rows = next(self.batches)
        self._enter(TRAINING, step)
        with jax.profiler.TraceAnnotation("transfer the batch"):
            batch = self.trainer.global_batch(rows, self.batch_size)
        # Wait for the previous step, so that the host is at most one step ahead of the devices.
        with jax.profiler.TraceAnnotation("wait for the previous step"):
            jax.block_until_ready(meter.steps[-1:])
        compiled = ""
        if not self.trainer.is_compiled(batch):
            compiled = self._compile(step, state, batch, meter)
        if step == self._start_step + 1:
            # From now on, a signal no longer ends the process: the loop saves the state first.
            wait_for_others()
            self.interrupts.hold()
            meter.restart()
        if compiled:
            self.progress.note(compiled)
        state, metrics = self.trainer.train_step(state, batch)
        meter.add(metrics, _lengths(batch))
        self.progress.tick(step)
        return state, metrics

    def _compile(self, step: int, state: TrainState, batch: Batch, meter: Meter) -> str:
        """Compiles the training step for the shapes of a batch; returns a note about it."""
        is_first = step == self._start_step + 1
        self._enter(COMPILING, step)
        if is_first:
            self.progress.note("compiling …")
        start = time.perf_counter()
        with meter.pause("compilation"), waiting("compiling", shown=not self.progress.quiet):
            self.trainer.compile(state, batch)
        text = f"compiled in {duration(time.perf_counter() - start)}"
        self._enter(TRAINING, step)
        if is_first:
            return text
        inputs, targets = _lengths(batch)
        size = f"step {step}: the first batch whose rows are trimmed to {inputs}/{targets} tokens"
        return f"{size} (trainer.trim_padding), {text}"

    def _enter(self, phase: str, step: int) -> None:
        """Records what this process is doing, and that it makes progress."""
        is_new = step <= self._start_step + 2
        self.heartbeat.beat(_AT_FIRST.get(phase, phase) if is_new else phase, step)

    def _check_stop(self) -> None:
        """Records that an evaluation makes progress; raises StopRequested after a signal."""
        self.heartbeat.beat(EVALUATING, self.heartbeat.step)
        if self._stop_requested():
            raise StopRequested

    def _due_before_training(self) -> Collection[str]:
        """Returns what the previous run has left out or, in a new run, what the config asks for."""
        if self._is_new and self.trainer.config.run_eval_before_training:
            return TRAINING_EVAL, INFERENCE_EVAL
        return owed_evaluations(self.checkpoints.model_dir, self._start_step)

    def _evaluate_owed(
        self,
        owed: Collection[str],
        evaluate: Sequence[Evaluate],
        state: TrainState,
        early: EarlyStopping,
    ) -> bool:
        """Runs the evaluations of the start state that are due before the first step.

        They are those that the previous run has left out, or those of a new run. Returns False if a
        signal has left them out again; a new run then still makes a step, after which it saves.
        With one process, where signals are not held yet, a signal ends the process instead.
        """
        step, measured = int(state.step), dict[str, float]()
        if not owed:
            return True
        self._enter(EVALUATING, step)
        try:
            for each in evaluate:
                if each.evaluation.kind in owed and each.evaluation.period is not None:
                    measured |= each.evaluation.run(step, state, self._check_stop)
        except StopRequested:
            return self._is_new
        if not self._is_new:
            self.checkpoints.add_measured(step, measured)
        if early.metric in measured:
            early.add(step, measured[early.metric])
        return True

    def _kinds(self, files: MetricsFiles) -> list[Evaluation]:
        """Returns the evaluations in the order in which they run."""
        trainer, progress = self.trainer, self.progress
        found: list[Evaluation] = [
            LossEvaluation(trainer, self.batch_size, self.evaluations, files, progress)
        ]
        if self.evaluator is not None:
            found.append(DecodedEvaluation(trainer, self.evaluator, files, progress, self.tracking))
        return found

    def _profiler(self, meter: Meter) -> Profiler:
        profile, run_dir = self.trainer.config.profile, self.checkpoints.model_dir
        return Profiler(profile, run_dir, meter, self.progress)

    def _resume_early_stopping(self, owed: Collection[str]) -> EarlyStopping:
        """Returns the early-stopping counts at the start, without evaluations in `owed`."""
        save, patience = self.checkpoints.config, self.trainer.config.early_stopping_patience
        kind = (save.metric_name_to_monitor or "").partition("/")[0]
        last_step = self._start_step - (kind in owed)
        return EarlyStopping.resumed(self.checkpoints.model_dir, save, patience, last_step)

    @contextlib.contextmanager
    def _open_metrics(self, owed: Collection[str]) -> Iterator[MetricsFiles]:
        """Opens the metrics files; drops lines after the start step, or from it on if owed."""
        step = self._start_step
        names = () if self.evaluator is None else self.evaluator.names
        last_steps = {TRAIN: step}
        for kind, tasks in ((TRAINING_EVAL, self.evaluations), (INFERENCE_EVAL, names)):
            last_steps |= {f"{kind}/{task}": step - (kind in owed) for task in tasks}
        run_dir, log = self.checkpoints.model_dir, self.tracking.log_metrics
        with contextlib.ExitStack() as stack:
            files = {
                folder: stack.enter_context(MetricsWriter(run_dir, folder, last_step, log))
                for folder, last_step in last_steps.items()
            }
            if self.config_text:  # T5X uses the same tag.
                files[TRAIN].write_text(step, "config", self.config_text)
            yield files


def _lengths(batch: Batch) -> tuple[int, int]:
    """Returns the lengths of a batch's inputs and targets in tokens."""
    return batch["encoder_input_tokens"].shape[1], batch["decoder_target_tokens"].shape[1]
