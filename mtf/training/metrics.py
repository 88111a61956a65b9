"""Computes T5X's metrics (`models.compute_base_metrics`) and writes them to files.

As in T5X, the run directory contains TensorBoard event files in `train/`, `training_eval/TASK/`
and `inference_eval/TASK/`. Each of these directories also contains a file `metrics.jsonl`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any

import jax
import numpy as np

from mtf.base import strict_json
from mtf.base.writing import new_figure, write_atomically, write_failure, write_figure
from mtf.storage import AnyPath, as_path, is_remote
from mtf.training.losses import PREFIX

StepMetrics = Mapping[str, Any]
# The metrics of one step, with the names "KIND/…/NAME" under which checkpoints store them.
Measured = dict[str, float]

# A curve with more points has no markers, and a panel with more curves has no legend.
_MAX_MARKERS, _MAX_LABELS = 40, 10

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
    """Returns a dict mapping the names of metrics to values, given sums for each step or batch.

    As in T5X, "loss" and "z_loss" are divided by the loss normalizing factor and averaged over the
    steps. "loss_per_target_token", which T5X does not have, is the average over all tokens of these
    steps, in nats. It depends neither on the normalizing factor nor on the size of the batches.
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
        "loss_per_target_token": _loss_per_target_token(host),
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


def _loss_per_target_token(steps: Sequence[StepMetrics]) -> float:
    if "token_loss" in steps[0]:
        losses, weights = ([s[name] for s in steps] for name in ("token_loss", "token_weights"))
    else:  # Undo the normalization, up to a factor that is the same for all steps.
        factors = np.array([s["normalizing_factor"] for s in steps], np.float64)
        factors /= factors.max()
        losses, weights = ([s[x] for s in steps] * factors for x in ("loss", "loss_weights"))
    return float(np.sum(losses, dtype=np.float64)) / max(float(np.sum(weights)), 1e-30)


def drop_later(path: AnyPath, last_step: int) -> None:
    """Removes the metrics of steps after `last_step`, which a resumed run repeats, from a file."""
    kept = [line for line in strict_json.read_lines(path) if line["step"] <= last_step]
    write_atomically(path, "".join(strict_json.dumps(line) + "\n" for line in kept))


class MetricsWriter(contextlib.AbstractContextManager["MetricsWriter"]):
    """Writes metrics to a TensorBoard event file and to `metrics.jsonl`, on process 0 only.

    If an interrupted run has already written metrics for steps after `first_step`, these metrics
    are dropped, so that the files match those of an uninterrupted run.

    Args:
      run_dir: the run directory.
      folder: the directory of the files in it, such as "training_eval/TASK".
      first_step: the last step whose metrics are kept.
      log: a function that also receives all metrics: the folder, the step and the metrics.
    """

    _SECONDS_BETWEEN_FLUSHES = 10.0

    def __init__(
        self,
        run_dir: AnyPath,
        folder: str,
        first_step: int,
        log: Callable[[str, int, Mapping[str, float]], None] = lambda *_: None,
    ) -> None:
        self._jsonl: _StoreFile | IO[bytes] | None = None
        self._directory = directory = run_dir / folder
        self._log, self._folder, self._is_remote = log, folder, is_remote(directory)
        if jax.process_index() != 0:
            return
        # tensorboardX is imported only on process 0, because other processes do not need it.
        from tensorboardX import record_writer, summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "metrics.jsonl"
        if path.exists():
            drop_later(path, first_step)
        self._jsonl = _StoreFile(path) if is_remote(path) else path.open("ab")
        # Silence tensorboardX's warnings about NaN, because the run already reports NaN values.
        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)
        # SummaryWriter is not used, because it writes events in a separate thread. If the disk is
        # full, that thread ends, and adding the next event blocks forever.
        for scheme in ("gs", "s3"):
            record_writer.register_writer_factory(scheme, _StoreFile)
        self._events = EventsWriter(str(directory / "events"))
        self._event, self._summary = event_pb2.Event, summary
        # This event makes TensorBoard ignore this step and later steps in earlier files.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add_event(first_step + 1, session_log=start)
        self._flush_events()

    def write(
        self, step: int, metrics: Mapping[str, float], times: Mapping[str, float] | None = None
    ) -> Measured:
        """Adds `metrics` and `times` to both files; in JSON, NaN and infinity become null.

        Returns `metrics` under the names that are used in checkpoints.
        """
        measured = {f"{self._folder}/{name}": value for name, value in metrics.items()}
        if self._jsonl is None:
            return measured
        metrics = {**metrics, **(times or {})}
        for name, value in metrics.items():
            self._add_event(step, summary=self._summary.scalar(name, value, display_name=name))
        self._jsonl.write((strict_json.dumps({"step": step, **metrics}) + "\n").encode())
        if not self._is_remote:
            self._jsonl.flush()
        self._log(self._folder, step, metrics)
        # Flushing waits for the disk or the object store, so it is not done after every step.
        if time.monotonic() - self._flushed > self._SECONDS_BETWEEN_FLUSHES:
            self.flush()
        return measured

    def write_text(self, step: int, tag: str, text: str) -> None:
        """Adds text to the TensorBoard event file and preserves its line breaks."""
        if self._jsonl is not None:
            markdown = "".join(f"    {line}\n" for line in text.splitlines())
            self._add_event(step, summary=self._summary.text(tag, markdown))

    def flush(self) -> None:
        """Flushes all buffered data to the disk or the object store."""
        if self._jsonl is not None:
            self._flush_events()
            self._jsonl.flush()

    def _add_event(self, step: int, **content: Any) -> None:
        self._events.write_event(self._event(step=step, wall_time=time.time(), **content))

    def _flush_events(self) -> None:
        self._events.flush()
        self._flushed = time.monotonic()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        # A store that has failed is not asked again: the lines are those of steps that were not
        # saved, so a resumed run writes them again.
        gone = self._is_remote and error is not None and write_failure(error, self._directory)
        if self._jsonl is not None and not gone:
            self._events.close()
            self._jsonl.close()


# The files of each directory, such as "training_eval/TASK", in a run directory.
MetricsFiles = Mapping[str, MetricsWriter]


class _StoreFile:
    """An appendable file in an object store; `flush` rewrites the entire file."""

    def __init__(self, path: AnyPath) -> None:
        self._path = path
        self._content = bytearray(path.read_bytes() if path.exists() else b"")
        self._flushed = len(self._content)

    @classmethod
    def open(cls, path: str) -> _StoreFile:
        return cls(as_path(path))

    def write(self, content: bytes) -> None:
        self._content += content

    def flush(self) -> None:
        if self._flushed < len(self._content):
            self._path.write_bytes(bytes(self._content))
            self._flushed = len(self._content)

    def close(self) -> None:
        self.flush()


def plot_curves(
    run_dir: AnyPath,
    title: str,
    evaluations: Iterable[str],
    decoded: Iterable[str],
    best: int | None = None,
) -> AnyPath:
    """Plots the losses of a run, and below them its metrics of decoded text, in RUN_DIR/loss.png.

    Args:
      run_dir: the run directory.
      title: the title of the plot.
      evaluations: the names of the evaluations that compute the loss.
      decoded: the names of the tasks whose decoded text is evaluated.
      best: the step of the best checkpoint, if the run monitors a metric.

    Returns the path of the plot.
    """
    from matplotlib.ticker import MaxNLocator  # Importing Matplotlib is slow.

    folders = {"train": "train"} | {f"evaluation: {x}": f"training_eval/{x}" for x in evaluations}
    metrics = {label: _curves(run_dir / folder) for label, folder in folders.items()}
    name = "loss_per_target_token"
    losses = {label: curves[name] for label, curves in metrics.items() if name in curves}
    has_z_loss = any(np.any(c["z_loss"][1] > 0) for c in metrics.values() if "z_loss" in c)
    scores = {
        f"{task}: {name}": curve
        for task in decoded
        for name, curve in _curves(run_dir / "inference_eval" / task).items()
    }
    panels = {f"loss{' with z-loss' * has_z_loss}\n(nats per target token)": losses}
    if scores:
        panels["metrics of decoded text"] = scores
    figure = new_figure(7, 1 + 2.5 * len(panels))
    figure.suptitle(title)
    all_axes = figure.subplots(len(panels), sharex=True, squeeze=False).flat
    for axes, (label, curves) in zip(all_axes, panels.items(), strict=True):
        for name, (steps, values) in curves.items():
            # A run of few steps may have a single point. Squares stay visible below circles.
            marker, size = ("s", 6) if name == "train" else ("o", 4)
            marker = marker if len(steps) <= _MAX_MARKERS else ""
            axes.plot(steps, values, label=name, marker=marker, markersize=size)
        if best is not None:
            axes.axvline(best, label="best checkpoint", color="gray", linestyle=":")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if len(curves) <= _MAX_LABELS:
            axes.legend(fontsize="small")
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    path = run_dir / "loss.png"
    write_figure(figure, path)
    return path


def _curves(folder: AnyPath) -> dict[str, tuple[list[int], np.ndarray]]:
    """Returns a dict that maps the metrics in a folder to their steps and their values."""
    path = folder / "metrics.jsonl"
    lines = strict_json.read_lines(path) if path.exists() else []
    steps = [line.pop("step") for line in lines]
    return {
        name: (steps, np.array([line.get(name) for line in lines], np.float64))
        for name in dict.fromkeys(name for line in lines for name in line)
    }
