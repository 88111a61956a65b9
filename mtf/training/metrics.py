"""T5X's metrics from the sums of each step, and where they are written.

Names are T5X's (`models.compute_base_metrics`); TensorBoard event files lie in `train/` and
`training_eval/TASK/` and `inference_eval/TASK/` of the run directory, as T5X's do, with
`metrics.jsonl` beside them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np

from mtf import strict_json
from mtf.writing import write_atomically

StepMetrics = Mapping[str, Any]

# What `summarize` gives of training steps and evaluations alike.
SUMMARY_METRICS = (
    "loss",
    "z_loss",
    "cross_ent_loss",
    "loss_per_nonpadding_target_token",
    "loss_per_all_target_tokens",
    "loss_per_target_token",
    "z_loss_per_all_target_tokens",
    "cross_ent_loss_per_all_target_tokens",
    "accuracy",
    "non_padding_fraction/loss_weights",
    "effective_batch_size/encoder",
    "non_padding_fraction/encoder",
    "effective_batch_size/decoder",
    "non_padding_fraction/decoder",
    "non_padding_fraction/overall",
)


def summarize(steps: Sequence[StepMetrics]) -> dict[str, float]:
    """T5X's metrics of consecutive steps, or of an evaluation's batches.

    Args:
      steps: the sums that `Trainer.train_step` or `eval_step` gave for each.

    Returns:
      Name → value; "loss" and "z_loss" are means over the steps, the per-token ones are means over
      tokens. Of these, T5X's contain the loss's normalizing factor; "loss_per_target_token" (not
      T5X's) is in nats whatever that is, each token counting as much as in the loss.
    """
    host = jax.device_get(list(steps))
    skipped = sum(float(s.get("skipped_updates", 0.0)) for s in host)
    if skipped < len(host):  # The others' means say how training goes.
        host = [s for s in host if not s.get("skipped_updates")]
    sums = {name: float(np.sum([s[name] for s in host], dtype=np.float64)) for name in host[0]}
    num_steps = len(host)
    tokens = sums["num_target_tokens"]
    nonpadding = max(sums["num_weighted_tokens"], 1.0)
    out = {
        "loss": sums["loss"] / num_steps,
        "z_loss": sums["z_loss"] / num_steps,
        "cross_ent_loss": (sums["loss"] - sums["z_loss"]) / num_steps,
        "loss_per_nonpadding_target_token": sums["loss"] / nonpadding,
        "loss_per_all_target_tokens": sums["loss"] / tokens,
        "loss_per_target_token": sums["loss"] / max(sums["loss_weights"], 1e-30),
        "z_loss_per_all_target_tokens": sums["z_loss"] / tokens,
        "cross_ent_loss_per_all_target_tokens": (sums["loss"] - sums["z_loss"]) / tokens,
        "accuracy": sums["num_correct"] / nonpadding,
        "non_padding_fraction/loss_weights": sums["num_weighted_tokens"] / tokens,
    }
    total = total_nonpadding = 0.0
    for side in ("encoder", "decoder"):
        num_tokens = sums[f"num_tokens/{side}"]
        num_nonpadding = sums[f"num_nonpadding_tokens/{side}"]
        out[f"effective_batch_size/{side}"] = sums[f"num_examples/{side}"] / num_steps
        out[f"non_padding_fraction/{side}"] = num_nonpadding / num_tokens
        total, total_nonpadding = total + num_tokens, total_nonpadding + num_nonpadding
    out["non_padding_fraction/overall"] = total_nonpadding / total
    if "learning_rate" in sums:
        out["learning_rate"] = sums["learning_rate"] / num_steps
        out["learning_rate/current"] = float(host[-1]["learning_rate"])
        out["weight_gradient_norm"] = sums["weight_gradient_norm"] / num_steps
    if "skipped_updates" in steps[0]:
        out["skipped_updates"] = skipped
    return out


def timing(
    num_steps: int, batch_size: int, targets_length: int, seconds: float, uptime: float
) -> dict[str, float]:
    """T5X's timing metrics of consecutive steps that took `seconds`."""
    cores = jax.device_count()
    seqs = num_steps * batch_size
    tokens = seqs * targets_length
    return {
        "timing/seconds": seconds,
        "timing/seqs": float(seqs),
        "timing/seqs_per_second": seqs / seconds,
        "timing/seqs_per_second_per_core": seqs / seconds / cores,
        "timing/steps_per_second": num_steps / seconds,
        "timing/target_tokens_per_second": tokens / seconds,
        "timing/target_tokens_per_second_per_core": tokens / seconds / cores,
        "timing/uptime": uptime,
    }


class MetricsWriter:
    """TensorBoard events and `metrics.jsonl` of one kind of metrics, written by process 0.

    Args:
      directory: for instance RUN_DIR/train.
      first_step: where this run begins; what an interrupted run wrote of later steps is dropped,
        so that a resumed run's files are those of an uninterrupted one.
    """

    def __init__(self, directory: Path, first_step: int) -> None:
        self._jsonl = None
        if jax.process_index() != 0:
            return
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "metrics.jsonl"
        _drop_steps_after(path, first_step)
        self._jsonl = path.open("a", encoding="utf-8")
        # It warns of every NaN; the run says what is wrong itself.
        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)
        self._events = _EventFile(directory, purge_step=first_step + 1)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of one step to both files; NaN and infinities are null in the JSON."""
        if self._jsonl is None:
            return
        for name, value in metrics.items():
            self._events.add_scalar(name, value, step)
        self._events.flush_now_and_then()
        self._jsonl.write(strict_json.dumps({"step": step, **metrics}) + "\n")
        self._jsonl.flush()

    def close(self) -> None:
        """Flushes and closes both files."""
        if self._jsonl is not None:
            self._events.close()
            self._jsonl.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _EventFile:
    """TensorBoard events, written by the thread that has them.

    tensorboardX's SummaryWriter hands them to a thread, which a full disk ends; whoever has the
    next events then waits for ever.

    Args:
      directory: where the file goes.
      purge_step: TensorBoard forgets what earlier files say of this step and later ones.
    """

    _SECONDS_BETWEEN_FLUSHES = 10.0

    def __init__(self, directory: Path, purge_step: int) -> None:
        # Imported here: only the writing process pays for it.
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        self._make_event, self._make_scalar = event_pb2.Event, summary.scalar
        self._writer = EventsWriter(str(directory / "events"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(step=purge_step, session_log=start)
        self._flush()

    def _add(self, **content: Any) -> None:
        self._writer.write_event(self._make_event(wall_time=time.time(), **content))

    def _flush(self) -> None:
        self._writer.flush()
        self._flushed = time.monotonic()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self._add(step=step, summary=self._make_scalar(name, value, display_name=name))

    def flush_now_and_then(self) -> None:
        """Flushing waits for the disk, so not at each step of a fast run."""
        if time.monotonic() - self._flushed > self._SECONDS_BETWEEN_FLUSHES:
            self._flush()

    def close(self) -> None:
        self._writer.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a `metrics.jsonl`; a last line that was cut off by a kill is left out.

    A value that was not finite is None.
    """
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def _drop_steps_after(path: Path, first_step: int) -> None:
    if not path.exists():
        return
    kept = [line for line in read_metrics(path) if line["step"] <= first_step]
    write_atomically(path, "".join(strict_json.dumps(line) + "\n" for line in kept))


def plot_loss(run_dir: Path, evaluations: Sequence[str]) -> Path:
    """Draws the loss per target token, in training and `evaluations`, to RUN_DIR/loss.png."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for directory in (run_dir / "train", *(run_dir / "training_eval" / e for e in evaluations)):
        path = directory / "metrics.jsonl"
        lines = read_metrics(path) if path.exists() else []
        if lines:
            steps = [line["step"] for line in lines]
            losses = np.array([line["loss_per_target_token"] for line in lines], np.float64)
            style = "-" if directory.name == "train" else "o-"
            axes.plot(steps, losses, style, label=directory.name.replace("_", " "), markersize=4)
    axes.set_xlabel("step")
    axes.set_ylabel("loss per target token (nats)")
    axes.grid(alpha=0.3)
    axes.legend()
    path = run_dir / "loss.png"
    figure.savefig(path, dpi=120)
    return path
