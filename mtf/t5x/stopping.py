"""Training with T5X that saves a checkpoint on SIGINT, SIGTERM and SIGHUP."""

from __future__ import annotations

# isort: off
from mtf.t5x import compatibility  # noqa: F401  # before T5X is imported
# isort: on

from collections.abc import Callable, Mapping
from typing import Any

import jax
from t5x import trainer

from mtf import signals
from mtf.run_end import RunEnd, write_end
from mtf.storage import AnyPath


class _SaveOnSignal(trainer.BaseAction):
    """After a signal, makes T5X write its emergency checkpoint and stop."""

    step = 0

    def __init__(self, interrupts: signals.Interrupts):
        self._interrupts = interrupts

    def run(self, train_state: Any, metrics_by_task: Mapping[str, Any]) -> bool:
        """Raises PreemptionError after a signal; called after each `stats_period` steps."""
        if self._interrupts.requested is not None:
            self.step = int(train_state.step)
            raise trainer.PreemptionError(self._interrupts.requested)
        return False


def train(function: Callable[..., tuple[int, Any]], run_dir: AnyPath) -> str:
    """Calls `t5x.train.train`, and records how it ended; returns a text about it.

    With several processes, a signal ends the process at once: T5X runs actions in only one.
    """
    if jax.process_count() > 1:
        step, _ = function()
        return _finished(run_dir, step)
    with signals.Interrupts(
        "T5X saves at the next statistics (trainer.stats_period)"
    ) as interrupts:
        action = _SaveOnSignal(interrupts)
        interrupts.hold()
        try:
            # T5X runs actions only if metrics are not computed concurrently.
            step, _ = function(actions={"TRAIN": [action]}, concurrent_metrics=False)
        except trainer.PreemptionError:
            stopped = str(interrupts.requested)
            write_end(run_dir, RunEnd("stopped", stopped))
            signals.ending(0)
            return (
                f"{stopped}: saved step {action.step} in {run_dir}\n"
                f"resume with: python -m mtf.run --from {run_dir} --engine t5x"
            )
    return _finished(run_dir, step)


def _finished(run_dir: AnyPath, step: int) -> str:
    if jax.process_index() == 0:
        write_end(run_dir, RunEnd("finished"))
    signals.ending(0)
    return f"run directory  {run_dir} (T5X, step {step})"
