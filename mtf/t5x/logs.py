"""Writes T5X's log to a file and T5X's metrics to the terminal and to metrics.jsonl."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from absl import logging as absl_logging

from mtf.base import strict_json
from mtf.base.writing import write_atomically
from mtf.checkpoints.settings import METRIC_KINDS
from mtf.checkpoints.steps import saved_steps
from mtf.storage import AnyPath, is_remote
from mtf.training.metrics import drop_later

LOG_FILE = "t5x.log"
# Log messages of T5X's metric writers contain the step and the metrics' kind, names and values.
_METRICS = re.compile(r"\[(\d+)\] collection=(\S+) (.*)")
_NUMBER = re.compile(r"([^ =,]+)=(-?(?:[\d.]+(?:e[+-]?\d+)?|nan|inf))(?=, |$)")
_SHOWN = ("loss", "loss_per_nonpadding_target_token", "accuracy", "learning_rate")

# A function that returns additional metrics, given T5X's metrics.
More = Callable[[Mapping[str, float]], Mapping[str, float]]


@contextlib.contextmanager
def logged(run_dir: AnyPath, more: More = dict) -> Iterator[None]:
    """Writes T5X's log to a file in the run directory, and T5X's metrics to mtf's metrics files.

    `more` takes the metrics of a step and returns additional metrics. If the run directory is
    remote, the log is not written before the run ends, and only TensorBoard's event files contain
    the metrics.
    """
    logger = absl_logging.get_absl_logger()
    before = logger.handlers[:], logger.propagate, absl_logging.get_verbosity()
    text = io.StringIO()
    file: logging.StreamHandler[Any] = logging.StreamHandler(text)
    if not is_remote(run_dir):
        file = logging.FileHandler(str(run_dir / LOG_FILE))
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.handlers, logger.propagate = [file, _Metrics(run_dir, more)], False
    absl_logging.set_verbosity(absl_logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[0], before[1]
        absl_logging.set_verbosity(before[2])
        file.close()
        if is_remote(run_dir):
            write_atomically(run_dir / LOG_FILE, text.getvalue())


def more_metrics(
    metrics: Mapping[str, float], *, factor: float | str | None, tokens_per_batch: int
) -> dict[str, float]:
    """Returns the loss in nats per target token; tokens are weighted as in the training loss.

    Args:
      metrics: the metrics that T5X computed over one or more steps.
      factor: the value of T5X's `loss_normalizing_factor`.
      tokens_per_batch: the number of target tokens in a batch, including padding.
    """
    loss = metrics["loss"]  # With these two factors, it is already a weighted mean.
    if factor not in ("NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"):
        factor = tokens_per_batch if factor == "NUM_TOTAL_TARGET_TOKENS" else factor
        loss = metrics["loss_per_nonpadding_target_token"] * float(factor or 1.0)
    return {"loss_per_target_token": loss}


class _Metrics(logging.Handler):
    """Prints the metrics that T5X logs and appends them to KIND/metrics.jsonl."""

    def __init__(self, run_dir: AnyPath, more: More):
        super().__init__()
        self._run_dir, self._more = run_dir, more
        last_step = max(saved_steps(run_dir), default=0)
        for kind in METRIC_KINDS:
            for file in (run_dir / kind).rglob("metrics.jsonl"):
                drop_later(file, last_step)

    def emit(self, record: logging.LogRecord) -> None:
        """Prints and stores the metrics in a log record if it contains any."""
        found = _METRICS.match(record.getMessage())
        if found is None:
            return
        step, kind, values = found.groups()
        metrics = {name: float(value) for name, value in _NUMBER.findall(values)}
        if shown := [f"{name} {metrics[name]:.5g}" for name in _SHOWN if name in metrics]:
            print(f"step {step}  {kind}  {'  '.join(shown)}", flush=True)
        if "loss" in metrics and not is_remote(self._run_dir):
            file = self._run_dir / kind / "metrics.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            line = {"step": int(step), **metrics, **self._more(metrics)}
            with file.open("a", encoding="utf-8") as stream:
                stream.write(strict_json.dumps(line) + "\n")
