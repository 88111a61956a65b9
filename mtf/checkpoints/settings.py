"""Settings for saving and restoring checkpoints. Does not import JAX."""

from __future__ import annotations

import dataclasses
from typing import Literal

from mtf.base.checks import AT_LEAST_ONE, check_fields, check_patterns, one_of
from mtf.base.errors import UserError, did_you_mean

# The kinds of metrics, which are also the names of their directories, as in T5X.
METRIC_KINDS = ("train", "training_eval", "inference_eval")


@dataclasses.dataclass(frozen=True)
class SaveCheckpointConfig:
    """Defines when a run saves and which checkpoints it keeps (T5X: `SaveCheckpointConfig`).

    The last step is always saved. On SIGTERM or Ctrl-C, the current step is saved.

    Attributes:
      period: number of steps between checkpoints; None to save only the last step.
      keep: number of newest checkpoints to keep; None to keep all. (In T5X's SaveBestCheckpointer,
        this is the number of best checkpoints.)
      dtype: dtype of the parameters on disk. The optimizer state remains float32.
      checkpoint_steps: additional steps at which to save.
      metric_name_to_monitor: the metric that ranks checkpoints, such as
        "training_eval/held_out/loss_per_target_token"; None to keep only the newest checkpoints.
      metric_mode: whether the largest ("max") or the smallest ("min") value is the best.
      keep_best: number of best checkpoints to keep in addition to the newest.
      keep_checkpoints_without_metrics: whether to keep checkpoints that lack the metric, such as
        those that a signal saved between two evaluations. (T5X's default is True.)
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
        check_fields(self, AT_LEAST_ONE, "period", "keep", optional=True)
        for step in self.checkpoint_steps:
            if step < 1:
                raise UserError(f"checkpoint_steps must be at least 1, not {step}.")
        check_fields(self, AT_LEAST_ONE, "keep_best")
        check_fields(self, one_of("float32", "bfloat16"), "dtype")
        check_fields(self, one_of("max", "min"), "metric_mode", optional=True)
        name, mode = self.metric_name_to_monitor, self.metric_mode
        if name is None:
            if mode is not None:
                raise UserError(
                    f"metric_mode is {mode!r}, but metric_name_to_monitor is not set. Set both or "
                    "neither."
                )
            return
        kind = name.partition("/")[0]
        if kind not in METRIC_KINDS:
            raise UserError(
                f"metric_name_to_monitor: {name!r} must begin with one of "
                f"{', '.join(f'{k}/' for k in METRIC_KINDS)}; for example, "
                "'training_eval/held_out/loss_per_target_token'." + did_you_mean(kind, METRIC_KINDS)
            )
        if mode is None:
            raise UserError(
                f"metric_mode is not set; set it to 'min' if the lowest {name} is the best, "
                "or 'max' if the highest is."
            )


@dataclasses.dataclass(frozen=True)
class RestoreCheckpointConfig:
    """The checkpoint from which a new run starts (T5X: `RestoreCheckpointConfig`).

    If the run directory already contains checkpoints, the run resumes from the latest one instead.

    Attributes:
      path: for mode "specific", a checkpoint of mtf, T5X (zarr with msgpack, or Orbax) or Mesh
        TensorFlow, or a Hugging Face directory; otherwise, a directory of checkpoints.
      mode: "specific" or "latest".
      assignment_map: (pattern, replacement) pairs. If a pattern matches the full name of a tensor
        of the model ("target/…", "state/param_states/…", "state/step"), the replacement is the
        tensor's name in the checkpoint, or None to keep the initial value. The first match counts.
      fallback_to_scratch: whether tensors that the checkpoint lacks keep their initial values
        instead of causing an error.
      step: the step that the checkpoint must have because the recipe computed `train_steps` from
        it; None to accept any step. The step of a Hugging Face directory is 0.
    """

    path: str = dataclasses.field(metadata={"path": True})
    mode: Literal["specific", "latest"] = "latest"
    assignment_map: tuple[tuple[str, str | None], ...] = ()
    fallback_to_scratch: bool = False
    step: int | None = dataclasses.field(default=None, metadata={"on_resume": "may change"})

    def __post_init__(self) -> None:
        check_fields(self, one_of("specific", "latest"), "mode")
        check_fields(self, ("at least 0", lambda step: step >= 0), "step", optional=True)
        check_patterns("assignment_map", (pattern for pattern, _ in self.assignment_map))


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Defines when to save and from which checkpoint a new run starts (T5X: `CheckpointConfig`).

    Attributes:
      save: when to save, and which checkpoints to keep.
      restore: the checkpoint from which a new run starts; None to start from scratch.
    """

    save: SaveCheckpointConfig = dataclasses.field(
        default=SaveCheckpointConfig(), metadata={"on_resume": "may change"}
    )
    restore: RestoreCheckpointConfig | None = None
