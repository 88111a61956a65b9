"""T5X's metrics (`models.compute_base_metrics`) and their files.

As in T5X, TensorBoard event files are in `train/`, `training_eval/TASK/` and `inference_eval/TASK/`
of the run directory. `metrics.jsonl` is in the same directories.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import jax
import numpy as np

from mtf import strict_json
from mtf.storage import AnyPath, StorePath, as_path
from mtf.training.own_loss import PREFIX
from mtf.writing import write_atomically, write_figure

StepMetrics = Mapping[str, Any]

# The metrics that `summarize` returns for both training and evaluation.
SUMMARY_METRICS = (
    *("loss", "z_loss", "cross_ent_loss"),
    *("loss_per_nonpadding_target_token", "loss_per_all_target_tokens", "loss_per_target_token"),
    *("z_loss_per_all_target_tokens", "cross_ent_loss_per_all_target_tokens"),
    *("accuracy", "non_padding_fraction/loss_weights"),
    *("effective_batch_size/encoder", "non_padding_fraction/encoder"),
    *("effective_batch_size/decoder", "non_padding_fraction/decoder"),
    "non_padding_fraction/overall",
)


def summarize(steps: Sequence[StepMetrics]) -> dict[str, float]:
    """Returns name → metric from the sums of consecutive steps or evaluation batches.

    "loss" and "z_loss" are means over steps, and include the normalizing factor of the loss, as all
    of T5X's. "loss_per_target_token" (not in T5X) is in nats per token, weighted as in the loss.
    """
    host = jax.device_get(list(steps))
    skipped = sum(float(s.get("skipped_updates", 0.0)) for s in host)
    if skipped < len(host):  # Average over the steps that were not skipped.
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
    if "weight_gradient_norm" in sums:
        out["weight_gradient_norm"] = sums["weight_gradient_norm"] / num_steps
    for name in sums:
        if name.startswith(PREFIX):
            out[name] = sums[name] / num_steps
    if "skipped_updates" in steps[0]:
        out["skipped_updates"] = skipped
    return out


def timing(
    num_steps: int,
    batch_size: int,
    inputs_length: float,
    targets_length: float,
    seconds: float,
    uptime: float,
) -> dict[str, float]:
    """Returns the timing metrics of consecutive steps that took `seconds`; lengths are means.

    These are T5X's, and "timing/tokens_per_second", which counts inputs and targets.
    """
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
        "timing/tokens_per_second": seqs * (inputs_length + targets_length) / seconds,
        "timing/uptime": uptime,
    }


class MetricsWriter(contextlib.AbstractContextManager["MetricsWriter"]):
    """Writes metrics to TensorBoard events and `metrics.jsonl`, on process 0.

    Drops the metrics after `first_step` that were written before an interruption, so that the files
    are those of an uninterrupted run. `log` is called with what `write` writes.
    """

    _SECONDS_BETWEEN_FLUSHES = 10.0

    def __init__(
        self,
        directory: AnyPath,
        first_step: int,
        log: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None,
    ) -> None:
        self._jsonl = None
        self._log = log
        if jax.process_index() != 0:
            return
        # Imported here because other processes do not need it.
        from tensorboardX import record_writer, summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "metrics.jsonl"
        if path.exists():
            kept = [line for line in read_metrics(path) if line["step"] <= first_step]
            write_atomically(path, "".join(strict_json.dumps(line) + "\n" for line in kept))
        self._is_remote = isinstance(path, StorePath)
        self._jsonl = _open_to_append(path)
        # It warns about every NaN, which the run reports itself.
        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)
        # SummaryWriter would pass events to a thread. A full disk ends the thread, and the next
        # event then blocks forever.
        for scheme in ("gs", "s3"):
            record_writer.register_writer_factory(scheme, _EventFiles)
        self._events = EventsWriter(str(directory / "events"))
        self._event, self._summary = event_pb2.Event, summary
        # Makes TensorBoard drop this step and later steps of earlier files.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add_event(first_step + 1, session_log=start)
        self._flush_events()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of one step to both files; NaN and infinities are null in the JSON."""
        if self._jsonl is None:
            return
        for name, value in metrics.items():
            self._add_event(step, summary=self._summary.scalar(name, value, display_name=name))
        self._jsonl.write((strict_json.dumps({"step": step, **metrics}) + "\n").encode())
        if not self._is_remote:
            self._jsonl.flush()
        self._log(step, metrics)
        # Flushing waits for the disk or the store: not in every step of a fast run.
        if time.monotonic() - self._flushed > self._SECONDS_BETWEEN_FLUSHES:
            self.flush()

    def write_text(self, step: int, tag: str, text: str) -> None:
        """Adds a text, whose line breaks are kept, to TensorBoard's events."""
        if self._jsonl is not None:
            markdown = "".join(f"    {line}\n" for line in text.splitlines())
            self._add_event(step, summary=self._summary.text(tag, markdown))

    def flush(self) -> None:
        """Writes to the disk or store what has not been written yet."""
        if self._jsonl is not None:
            self._flush_events()
            self._jsonl.flush()

    def _add_event(self, step: int, **content: Any) -> None:
        self._events.write_event(self._event(step=step, wall_time=time.time(), **content))

    def _flush_events(self) -> None:
        self._events.flush()
        self._flushed = time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self._jsonl is not None:
            self._events.close()
            self._jsonl.close()


def _open_to_append(path: AnyPath) -> _StoreFile | IO[bytes]:
    return _StoreFile(path) if isinstance(path, StorePath) else path.open("ab")


class _StoreFile:
    """A file in a store that is appended to: `flush` writes the whole file again."""

    def __init__(self, path: StorePath) -> None:
        self._path = path
        self._content = bytearray(path.read_bytes() if path.exists() else b"")
        self._flushed = len(self._content)

    def write(self, content: bytes) -> None:
        self._content += content

    def flush(self) -> None:
        if self._flushed < len(self._content):
            self._path.write_bytes(bytes(self._content))
            self._flushed = len(self._content)

    def close(self) -> None:
        self.flush()


class _EventFiles:
    """Opens event files in stores for tensorboardX."""

    @staticmethod
    def open(path: str) -> _StoreFile:
        file = as_path(path)
        assert isinstance(file, StorePath)
        return _StoreFile(file)


def read_metrics(path: AnyPath) -> list[dict[str, Any]]:
    """Returns the lines of a `metrics.jsonl`, without an incomplete last line.

    Values that were not finite are None.
    """
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def plot_loss(run_dir: AnyPath, evaluations: Sequence[str]) -> AnyPath:
    """Plots the loss per target token, in training and `evaluations`, to RUN_DIR/loss.png."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
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
    write_figure(figure, path)
    return path
