"""When checkpoints are written, and what a run starts from. Imports no jax."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from mtf.errors import UserError, check_at_least_one, did_you_mean

# What a run measures, each in a directory of this name (T5X's names).
METRIC_KINDS = ("train", "training_eval", "inference_eval")


@dataclasses.dataclass(frozen=True)
class SaveCheckpointConfig:
    """When and how a run saves (T5X: `SaveCheckpointConfig`, `SaveBestCheckpointer`).

    The last step is always saved, and on SIGTERM or Ctrl-C the current one.

    Attributes:
      period: steps between checkpoints; None: the last step only.
      keep: how many of the newest stay; None: all. (T5X's SaveBestCheckpointer: how many of the
        best.)
      dtype: of the parameters on disk. The optimizer's state stays float32.
      checkpoint_steps: steps that are saved besides.
      metric_name_to_monitor: the metric by which checkpoints are the best, such as
        "training_eval/held_out/loss_per_target_token"; None: only the newest stay.
      metric_mode: whether the largest value is the best ("max") or the smallest ("min").
      keep_best: how many of the best stay, besides the newest.
      keep_checkpoints_without_metrics: whether a checkpoint without this metric, saved on a
        signal between two evaluations, stays for good. (T5X: True.)
    """

    period: int | None = 1000
    keep: int | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    checkpoint_steps: tuple[int, ...] = ()
    metric_name_to_monitor: str | None = None
    metric_mode: Literal["max", "min"] | None = None
    keep_best: int = 1
    keep_checkpoints_without_metrics: bool = False

    def __post_init__(self) -> None:
        check_at_least_one(self, "period", "keep", optional=True)
        for step in self.checkpoint_steps:
            if step < 1:
                raise UserError(f"checkpoint_steps must be at least 1, not {step}.")
        check_at_least_one(self, "keep_best")
        self._check_metric()
        if self.dtype not in ("float32", "bfloat16"):
            raise UserError(f"dtype must be 'float32' or 'bfloat16', not {self.dtype!r}.")

    def _check_metric(self) -> None:
        name, mode = self.metric_name_to_monitor, self.metric_mode
        if mode not in (None, "max", "min"):
            raise UserError(f"metric_mode must be 'max' or 'min', not {mode!r}.")
        if name is None:
            if mode is not None:
                raise UserError(
                    f"metric_mode is {mode!r}, but metric_name_to_monitor is None: there is no "
                    "metric to compare checkpoints by. Set it, or leave metric_mode at None."
                )
            return
        kind = name.partition("/")[0]
        if kind not in METRIC_KINDS:
            raise UserError(
                f"metric_name_to_monitor: {name!r} begins with none of "
                f"{', '.join(f'{k}/' for k in METRIC_KINDS)}; expected such as "
                "'training_eval/held_out/loss_per_target_token'." + did_you_mean(kind, METRIC_KINDS)
            )
        if mode is None:
            raise UserError(
                f"metric_mode is not set: expected 'min' if the smallest {name} is the best, "
                "'max' if the largest is."
            )


@dataclasses.dataclass(frozen=True)
class RestoreCheckpointConfig:
    """What a fresh run starts from (T5X: `RestoreCheckpointConfig`).

    A run directory that has checkpoints continues from its latest, whatever is set here.

    Attributes:
      path: one checkpoint (ours, T5X's zarr+msgpack or Orbax) for mode "specific", else a
        directory that holds them.
      mode: "specific", "latest", or "all" (for evaluation, every one in turn).
      assignment_map: (pattern, replacement) pairs. The first pattern that matches the whole name
        of a tensor of ours ("target/…", "state/param_states/…", "state/step") says what it is
        called there; replacement None leaves it as initialised.
      fallback_to_scratch: tensors that the checkpoint lacks stay as initialised, instead of being
        an error.
      step: the checkpoint's expected step, from which the recipe has counted `train_steps`;
        another one is refused. A Hugging Face directory is at step 0. None: any.
    """

    path: str = dataclasses.field(metadata={"path": True})
    mode: Literal["specific", "latest", "all"] = "latest"
    assignment_map: tuple[tuple[str, str | None], ...] = ()
    fallback_to_scratch: bool = False
    step: int | None = dataclasses.field(default=None, metadata={"on_resume": "may change"})

    def __post_init__(self) -> None:
        if self.mode not in ("specific", "latest", "all"):
            raise UserError(f"mode must be 'specific', 'latest' or 'all', not {self.mode!r}.")
        if self.step is not None and self.step < 0:
            raise UserError(f"step must be at least 0 or None, not {self.step}.")
        for pattern, _ in self.assignment_map:
            try:
                re.compile(pattern)
            except re.error as error:
                raise UserError(
                    f"assignment_map: {pattern!r} is not a regular expression: {error}."
                ) from error


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Saving and restoring (T5X: `CheckpointConfig`).

    Attributes:
      save: when and how.
      restore: what a fresh run starts from; None: from scratch.
    """

    save: SaveCheckpointConfig = dataclasses.field(
        default=SaveCheckpointConfig(), metadata={"on_resume": "may change"}
    )
    restore: RestoreCheckpointConfig | None = None
