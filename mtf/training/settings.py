"""Settings of the optimizer, the schedule and the trainer. Imports no JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from mtf.checks import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    RATE,
    Condition,
    check_fields,
    check_patterns,
)
from mtf.errors import UserError, did_you_mean

SCHEDULE_FACTORS = (
    "constant",
    "linear_warmup",
    "linear_decay",
    "rsqrt_decay",
    "rsqrt_normalized_decay",
    "decay_every",
    "cosine_decay",
)

_MAY_CHANGE = {"on_resume": "may change"}

# Steps are int32, as in T5X.
STEP: Condition = ("in [0, 2**31)", lambda step: 0 <= step < 2**31)
_PERIOD: Condition = ("in [1, 2**31)", lambda steps: 1 <= steps < 2**31)

FACTOR_PARTS = ("ROW", "COLUMN", "BATCH", "NONE")
# Logical axis → its role in Adafactor's factored second moment, for parameters of rank > 2
# (T5X: `adafactor.standard_logical_factor_rules`). BATCH dimensions index separate matrices.
LOGICAL_FACTOR_RULES: tuple[tuple[str, str], ...] = (
    ("vocab", "COLUMN"),
    ("embed", "ROW"),
    ("mlp", "COLUMN"),
    ("heads", "COLUMN"),
    ("kv", "COLUMN"),
    ("joined_kv", "COLUMN"),
    ("relpos_buckets", "NONE"),
    ("layer_norm_scale", "NONE"),
    ("layers", "BATCH"),
    ("stack", "BATCH"),
)


# A function of the step, a traced int32 scalar: the number of updates before this one, as in T5X.
# Schedules of optax are such functions.
Schedule: TypeAlias = Callable[..., Any]


@runtime_checkable
class GradientTransformation(Protocol):
    """An optimizer made with optax (optax: `GradientTransformation`)."""

    def init(self, params: Any, /) -> Any:
        """Returns the state before the first update."""

    def update(self, updates: Any, state: Any, params: Any = None, /) -> Any:
        """Returns what is added to the parameters, and the new state; `updates` are gradients."""


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """A learning rate as a product of named factors (T5X: `create_learning_rate_scheduler`).

    Attributes:
      factors: names from SCHEDULE_FACTORS, joined by " * ". `linear_decay` includes constant and
        warm-up.
      base_learning_rate: value of `constant`.
      warmup_steps: number of steps of linear_warmup, after which the decays start.
      decay_factor: factor of decay_every; slope per step of linear_decay.
      steps_per_decay: number of steps between decays of decay_every.
      steps_per_cycle: number of steps in a cycle of cosine_decay.
      step_offset: step at which the schedule starts.
      min_learning_rate: lower bound of the learning rate.
    """

    factors: str = "constant * linear_warmup * rsqrt_decay"
    base_learning_rate: float = 0.5
    warmup_steps: int = 1000
    decay_factor: float = 0.5
    steps_per_decay: int = 20000
    steps_per_cycle: int = 100000
    step_offset: int = 0
    min_learning_rate: float = 1e-8

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in SCHEDULE_FACTORS:
                raise UserError(
                    f"factors: unknown schedule factor {name!r}; expected names from "
                    f"{', '.join(SCHEDULE_FACTORS)}, joined by ' * '."
                    + did_you_mean(name, SCHEDULE_FACTORS)
                )
        check_fields(self, NOT_NEGATIVE, "base_learning_rate", "decay_factor", "min_learning_rate")
        check_fields(self, _PERIOD, "steps_per_decay", "steps_per_cycle")
        check_fields(self, STEP, "step_offset", "warmup_steps")
        needs_warmup = {"linear_warmup", "linear_decay", "rsqrt_decay", "rsqrt_normalized_decay"}
        if self.warmup_steps < 1 and needs_warmup & set(self.names):
            raise UserError(
                f"warmup_steps must be at least 1 with {self.factors!r}, not {self.warmup_steps}."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the factors."""
        return tuple(name.strip() for name in self.factors.split("*"))


@dataclasses.dataclass(frozen=True)
class AdafactorConfig:
    """Adafactor with T5X's semantics (Shazeer & Stern 2018; T5X: `adafactor.py`).

    Attributes:
      learning_rate: the schedule, or a function of the step; the value is multiplied by each
        parameter's scale.
      decay_rate: exponent of the second moment's decay.
      step_offset: step at which fine-tuning started, for the decay.
      factored: whether to store row and column sums instead of a matrix's whole second moment.
      min_dim_size_to_factor: size below which matrices are not factored.
      logical_factor_rules: (logical axis, role) pairs for parameters of rank > 2.
      multiply_by_parameter_scale: whether to scale updates by the parameter's root mean square.
      clipping_threshold: bound of an update's root mean square; None: no clipping.
      beta1: decay of the first moment; None: no first moment.
      weight_decay_rate: fraction of the parameter subtracted in each step; None: no decay.
      weight_decay_rate_lr_exponent: multiplies that fraction by lr ** exponent.
      global_norm_clip_threshold: bound of the norm of all gradients; None: no clipping.
      epsilon1: added to squared gradients.
      epsilon2: smallest parameter scale.
    """

    learning_rate: ScheduleConfig | Schedule
    decay_rate: float = 0.8
    step_offset: int = 0
    factored: bool = True
    min_dim_size_to_factor: int = 128
    logical_factor_rules: tuple[tuple[str, str], ...] = LOGICAL_FACTOR_RULES
    multiply_by_parameter_scale: bool = True
    clipping_threshold: float | None = 1.0
    beta1: float | None = None
    weight_decay_rate: float | None = None
    weight_decay_rate_lr_exponent: float | None = None
    global_norm_clip_threshold: float | None = None
    epsilon1: float = 1e-30
    epsilon2: float = 1e-3

    def __post_init__(self) -> None:
        check_fields(self, RATE, "decay_rate")
        check_fields(self, RATE, "beta1", optional=True)
        thresholds = ("clipping_threshold", "global_norm_clip_threshold")
        check_fields(self, POSITIVE, *thresholds, optional=True)
        # With epsilon1 0, a gradient of 0 would be divided by 0.
        check_fields(self, POSITIVE, "epsilon1")
        check_fields(self, NOT_NEGATIVE, "epsilon2")
        weight_decay = ("weight_decay_rate", "weight_decay_rate_lr_exponent")
        check_fields(self, NOT_NEGATIVE, *weight_decay, optional=True)
        check_fields(self, STEP, "step_offset")
        check_fields(self, AT_LEAST_ONE, "min_dim_size_to_factor")
        axes = [axis for axis, _ in self.logical_factor_rules]
        for axis, part in self.logical_factor_rules:
            if part not in FACTOR_PARTS:
                raise UserError(
                    f"logical_factor_rules: {part!r} for {axis!r} must be one of "
                    f"{', '.join(FACTOR_PARTS)}.{did_you_mean(part, FACTOR_PARTS)}"
                )
            if axes.count(axis) > 1:
                raise UserError(f"logical_factor_rules: {axis!r} has more than one rule.")


@dataclasses.dataclass(frozen=True)
class AdamWConfig:
    """AdamW (Loshchilov & Hutter 2019), from optax.

    Attributes:
      learning_rate: the schedule, or a function of the step.
      beta1: decay of the first moment.
      beta2: decay of the second moment.
      epsilon: added to the root of the second moment.
      weight_decay_rate: decay of all parameters but norm scales, multiplied by the learning rate.
      global_norm_clip_threshold: bound of the norm of all gradients; None: no clipping.
    """

    learning_rate: ScheduleConfig | Schedule
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay_rate: float = 0.0
    global_norm_clip_threshold: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, RATE, "beta1", "beta2")
        check_fields(self, POSITIVE, "global_norm_clip_threshold", optional=True)
        check_fields(self, POSITIVE, "epsilon")
        check_fields(self, NOT_NEGATIVE, "weight_decay_rate")


@dataclasses.dataclass(frozen=True)
class EmaConfig:
    """An exponential moving average (EMA) of the trained parameters (Polyak & Juditsky 1992).

    It starts from the initial parameters. After each update, it becomes
    decay * average + (1 - decay) * parameters.

    Attributes:
      decay: weight of the average so far, in [0, 1).
      evaluate: whether evaluations during training use the average instead of the parameters.
    """

    decay: float = 0.999
    evaluate: bool = dataclasses.field(default=True, metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        check_fields(self, RATE, "decay")


@dataclasses.dataclass(frozen=True)
class TrainerConfig:
    """Settings of the training step and the loop (T5X: `trainer.Trainer` and `train.train`).

    Attributes:
      num_microbatches: number of parts of a batch whose gradients are summed before the update.
      stats_period: number of steps between lines of progress, TensorBoard and metrics.jsonl.
      eval_period: number of steps between evaluations; None: no evaluation.
      eval_steps: number of batches per evaluation; None: all.
      trim_padding: whether to cut the padding after the longest row of a batch, to one of four
        lengths of inputs and of targets; each pair is compiled when it first occurs. Losses change
        only by rounding and by the random choices of dropout. With several processes, all batches
        keep the full lengths.
      loss_chunk_elements: maximum number of logits per device that exist at a time; the loss of
        larger batches is computed in chunks.
      skip_nonfinite_updates: whether a step with a non-finite loss or gradient norm leaves
        parameters and optimizer state unchanged and is counted (`skipped_updates`), instead of
        ending the run. Its batch is used up, and the step still counts for the schedule.
      frozen: regular expressions that match whole names of parameters, such as "encoder/.*". These
        are not trained, and have no gradients and no optimizer state.
      ema: averages parameters; None: no average.
      hang_seconds: seconds without progress after which the run writes the stacks of all threads
        and ends with exit status 1, so that a scheduler restarts it. It may compile, evaluate and
        save four times as long. None: never.
      early_stopping_patience: number of evaluations without improvement of
        `checkpoint.save.metric_name_to_monitor` after which training ends; None: never.
    """

    num_microbatches: int = dataclasses.field(default=1, metadata=_MAY_CHANGE)
    stats_period: int = dataclasses.field(default=100, metadata=_MAY_CHANGE)
    eval_period: int | None = dataclasses.field(default=1000, metadata=_MAY_CHANGE)
    eval_steps: int | None = dataclasses.field(default=20, metadata=_MAY_CHANGE)
    trim_padding: bool = dataclasses.field(default=False, metadata=_MAY_CHANGE)
    loss_chunk_elements: int = dataclasses.field(default=2**25, metadata=_MAY_CHANGE)
    skip_nonfinite_updates: bool = dataclasses.field(default=False, metadata=_MAY_CHANGE)
    frozen: tuple[str, ...] = ()
    ema: EmaConfig | None = None
    hang_seconds: float | None = dataclasses.field(default=1800.0, metadata=_MAY_CHANGE)
    early_stopping_patience: int | None = dataclasses.field(default=None, metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        check_fields(self, AT_LEAST_ONE, "num_microbatches", "stats_period", "loss_chunk_elements")
        optional = ("eval_period", "eval_steps", "early_stopping_patience")
        check_fields(self, AT_LEAST_ONE, *optional, optional=True)
        check_fields(self, POSITIVE, "hang_seconds", optional=True)
        check_patterns(self, "frozen")


AnyOptimizer: TypeAlias = AdafactorConfig | AdamWConfig | GradientTransformation
