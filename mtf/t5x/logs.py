"""T5X's log in a file, and its metrics on the terminal and in metrics.jsonl."""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from mtf import strict_json
from mtf.checkpoints.settings import METRIC_KINDS
from mtf.checkpoints.steps import saved_steps
from mtf.storage import AnyPath
from mtf.writing import write_atomically

LOG_FILE = "t5x.log"
# What T5X's metric writers log: step, kind of metrics, names and values.
_METRICS = re.compile(r"\[(\d+)\] collection=(\S+) (.*)")
_NUMBER = re.compile(r"([^ =,]+)=(-?(?:[\d.]+(?:e[+-]?\d+)?|nan|inf))(?=, |$)")
_SHOWN = ("loss", "loss_per_nonpadding_target_token", "accuracy", "learning_rate")

# Returns metrics that are computed from T5X's.
More = Callable[[Mapping[str, float]], Mapping[str, float]]


@contextlib.contextmanager
def logged(run_dir: AnyPath, more: More = dict) -> Iterator[None]:
    """Writes T5X's log to a file of the run directory, and its metrics where mtf writes them.

    `more` returns metrics to add to those of a step. In a store, the log is written at the end, and
    metrics are only in TensorBoard's events.
    """
    from absl import logging as absl_logging

    logger = absl_logging.get_absl_logger()
    before = logger.handlers[:], logger.propagate, absl_logging.get_verbosity()
    scratch = None if isinstance(run_dir, Path) else tempfile.TemporaryDirectory()
    folder = run_dir if scratch is None else Path(scratch.name)
    file = logging.FileHandler(str(folder / LOG_FILE))
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.handlers, logger.propagate = [file, _Metrics(run_dir, more)], False
    absl_logging.set_verbosity(absl_logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[0], before[1]
        absl_logging.set_verbosity(before[2])
        file.close()
        if scratch is not None:
            write_atomically(run_dir / LOG_FILE, (folder / LOG_FILE).read_text(encoding="utf-8"))
            scratch.cleanup()


def loss_per_target_token(
    metrics: Mapping[str, float], factor: float | str | None, tokens_per_batch: int
) -> float:
    """Returns the loss in nats per token, weighted as in the loss, from T5X's metrics.

    Args:
      metrics: those of some steps.
      factor: T5X's `loss_normalizing_factor`.
      tokens_per_batch: number of target tokens of a batch, including padding.
    """
    if factor in ("NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"):
        return metrics["loss"]  # It is a weighted mean already.
    if factor == "NUM_TOTAL_TARGET_TOKENS":
        factor = tokens_per_batch
    return metrics["loss_per_nonpadding_target_token"] * float(factor or 1.0)


class _Metrics(logging.Handler):
    """Prints the metrics of losses that T5X logs, and appends them to KIND/metrics.jsonl."""

    def __init__(self, run_dir: AnyPath, more: More):
        super().__init__()
        self._run_dir, self._more = run_dir, more
        _drop_after(run_dir, (saved_steps(run_dir) or [0])[-1])

    def emit(self, record: logging.LogRecord) -> None:
        """Shows and writes the record if it has metrics of training or an evaluation."""
        found = _METRICS.match(record.getMessage())
        if found is None:
            return
        step, kind, values = found.groups()
        metrics = {name: float(value) for name, value in _NUMBER.findall(values)}
        if shown := [f"{name} {metrics[name]:.5g}" for name in _SHOWN if name in metrics]:
            print(f"step {step}  {kind}  {'  '.join(shown)}", flush=True)
        if "loss" in metrics and isinstance(self._run_dir, Path):
            file = self._run_dir / kind / "metrics.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            line = {"step": int(step), **metrics, **self._more(metrics)}
            with file.open("a", encoding="utf-8") as stream:
                stream.write(strict_json.dumps(line) + "\n")


def _drop_after(run_dir: AnyPath, step: int) -> None:
    """Drops the metrics of steps that are repeated because an earlier process was interrupted."""
    from mtf.training.metrics import read_metrics

    for kind in METRIC_KINDS:
        for file in (run_dir / kind).rglob("metrics.jsonl"):
            kept = [line for line in read_metrics(file) if line["step"] <= step]
            write_atomically(file, "".join(strict_json.dumps(line) + "\n" for line in kept))
