"""The settings of the optimizer, the schedule and the trainer. Does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from mtf.base.checks import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    RATE,
    Condition,
    check_fields,
    check_patterns,
)
from mtf.base.errors import UserError, did_you_mean
from mtf.base.processes.heartbeat import HANG_SECONDS
from mtf.checkpoints.steps import StepChoice, chosen_steps

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

# The value of `TrainerConfig.profile` for traces that start with a signal.
SIGNAL_TO_PROFILE = "SIGUSR1"
_MAX_TRACED = 1000

# A function that returns the learning rate for a step, such as an optax schedule. As in T5X, the
# step is a traced int32 scalar that counts the previous updates.
Schedule: TypeAlias = Callable[..., Any]


@runtime_checkable
class GradientTransformation(Protocol):
    """An optax optimizer (`optax.GradientTransformation`)."""

    def init(self, params: Any, /) -> Any:
        """Returns the initial state for `params`."""

    def update(self, updates: Any, state: Any, params: Any = None, /) -> Any:
        """Returns the updates to add to `params` and the new state; `updates` are the gradients."""


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """A learning rate that is a product of named factors (T5X: `create_learning_rate_scheduler`).

    Attributes:
      factors: names from SCHEDULE_FACTORS, joined by " * ". `linear_decay` already includes the
        constant and the warm-up.
      base_learning_rate: the value of the factor `constant`.
      warmup_steps: the number of warm-up steps. All decays except `decay_every` start after them.
      decay_factor: the factor by which `decay_every` multiplies the learning rate, or the fraction
        of the base learning rate that `linear_decay` subtracts in each step.
      steps_per_decay: the number of steps between two decays of `decay_every`.
      steps_per_cycle: the number of steps in a cycle of `cosine_decay`.
      step_offset: the step at which the schedule starts.
      min_learning_rate: the lower bound of the learning rate.
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


# What to write if a learning rate is set to a number.
_CONSTANT = {"instead_of_number": "@mtf.builders.schedule.constant(learning_rate={})"}


@dataclasses.dataclass(frozen=True)
class AdafactorConfig:
    """Adafactor with T5X's semantics (Shazeer & Stern 2018; T5X: `adafactor.py`).

    Attributes:
      learning_rate: the schedule, or a function that returns the learning rate for a step.
      decay_rate: the exponent in the decay of the second moment, 1 - step ** -decay_rate.
      step_offset: the step at which fine-tuning started; the decay counts steps from it.
      factored: whether to store the means of the rows and columns of a matrix's second moment
        instead of the full second moment.
      min_dim_size_to_factor: the minimum size of each dimension of a matrix that is factored.
      multiply_by_parameter_scale: whether to multiply the learning rate by the root mean square of
        the parameter.
      clipping_threshold: the maximum root mean square of an update; None to disable clipping.
      beta1: the decay of the first moment; None to disable the first moment.
      weight_decay_rate: the fraction of each parameter that is subtracted in each step; None to
        disable weight decay.
      weight_decay_rate_lr_exponent: if set, `weight_decay_rate` (or 1 if that is None) is
        multiplied by the learning rate raised to this exponent.
      global_norm_clip_threshold: the maximum global norm of the gradients; None to disable
        clipping.
      epsilon1: the constant that is added to squared gradients.
      epsilon2: the lower bound of the parameter scale.
    """

    learning_rate: ScheduleConfig | Schedule = dataclasses.field(metadata=_CONSTANT)
    decay_rate: float = 0.8
    step_offset: int = 0
    factored: bool = True
    min_dim_size_to_factor: int = 128
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
        # With epsilon1 = 0, a zero gradient would be divided by zero.
        check_fields(self, POSITIVE, "epsilon1")
        check_fields(self, NOT_NEGATIVE, "epsilon2")
        weight_decay = ("weight_decay_rate", "weight_decay_rate_lr_exponent")
        check_fields(self, NOT_NEGATIVE, *weight_decay, optional=True)
        check_fields(self, STEP, "step_offset")
        check_fields(self, AT_LEAST_ONE, "min_dim_size_to_factor")


@dataclasses.dataclass(frozen=True)
class AdamWConfig:
    """AdamW (Loshchilov & Hutter 2019), from optax.

    Attributes:
      learning_rate: the schedule, or a function that returns the learning rate for a step.
      beta1: the decay of the first moment.
      beta2: the decay of the second moment.
      epsilon: the constant that is added to the square root of the second moment.
      weight_decay_rate: the weight decay of all parameters except norm scales; it is multiplied by
        the learning rate.
      global_norm_clip_threshold: the maximum global norm of the gradients; None to disable
        clipping.
    """

    learning_rate: ScheduleConfig | Schedule = dataclasses.field(metadata=_CONSTANT)
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


def field_names(settings: type, *others: str) -> str:
    """Returns the names of a class's fields except `others`, separated by spaces.

    The fields of `ScheduleConfig` and `AdafactorConfig` have the names of T5X's arguments.
    """
    return " ".join(x.name for x in dataclasses.fields(settings) if x.name not in others)


@dataclasses.dataclass(frozen=True)
class EmaConfig:
    """An exponential moving average (EMA) of the trained parameters (Polyak & Juditsky 1992).

    The average starts from the initial parameters. After each update, it becomes
    decay * average + (1 - decay) * parameters.

    Attributes:
      decay: the weight of the previous average, in [0, 1).
      evaluate: whether evaluations during training use the average instead of the parameters.
    """

    decay: float = 0.999
    evaluate: bool = dataclasses.field(default=True, metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        check_fields(self, RATE, "decay")


@dataclasses.dataclass(frozen=True)
class TrainerConfig:
    """Settings of the training step and loop (T5X: `trainer.Trainer` and `train.train`).

    Attributes:
      num_microbatches: the number of parts into which a batch is split. Their gradients are summed
        before the update.
      stats_period: the number of steps between two reports of statistics, which are written to the
        terminal, TensorBoard and metrics.jsonl.
      eval_period: the number of steps between evaluations; None to disable evaluation.
      run_eval_before_training: whether a new run also evaluates the state from which it starts.
      eval_steps: the maximum number of batches in an evaluation; None to use all batches.
      trim_padding: whether to remove most of the padding beyond the longest row of a batch. Inputs
        and targets are each cut to one of four lengths, and the step is compiled when a pair of
        lengths first occurs. Losses change only because of rounding and the random choices of
        dropout. If there are several processes, batches are not trimmed.
      loss_chunk_elements: the maximum number of logits that a device keeps in memory at a time. The
        loss of larger batches is computed in chunks.
      skip_nonfinite_updates: whether to skip an update if the loss or the gradient norm is not
        finite, instead of ending the run. The parameters and the optimizer state do not change, and
        the step is counted in the metric `skipped_updates`. The schedule still advances, and the
        batch is not used again.
      frozen: regular expressions that match the full names of parameters, such as "encoder/.*".
        These parameters are not trained and have neither gradients nor optimizer state.
      ema: the settings for averaging the parameters; None to keep no average.
      hang_seconds: if the run makes no progress for this many seconds, it writes the stack traces
        of all threads and ends with exit status 1, so that a scheduler can restart it. Compiling,
        evaluating and saving may take four times as long. None disables the limit.
      early_stopping_patience: the number of consecutive evaluations without an improvement of
        `checkpoint.save.metric_name_to_monitor` after which training ends; None to disable early
        stopping.
      profile: the steps of which a profiler trace is written to RUN_DIR/profile: a step, several
        steps such as "10,20", "FIRST:LAST" or "FIRST:LAST:PERIOD"; or "SIGUSR1" to trace the next
        three steps after each such signal. None for no trace. As in `train_steps`, steps are
        counted from the start of pretraining. Consecutive steps are in one trace.
    """

    num_microbatches: int = dataclasses.field(default=1, metadata=_MAY_CHANGE)
    stats_period: int = dataclasses.field(default=100, metadata=_MAY_CHANGE)
    eval_period: int | None = dataclasses.field(default=1000, metadata=_MAY_CHANGE)
    run_eval_before_training: bool = dataclasses.field(default=False, metadata=_MAY_CHANGE)
    eval_steps: int | None = dataclasses.field(default=20, metadata=_MAY_CHANGE)
    trim_padding: bool = dataclasses.field(default=False, metadata=_MAY_CHANGE)
    loss_chunk_elements: int = dataclasses.field(default=2**25, metadata=_MAY_CHANGE)
    skip_nonfinite_updates: bool = dataclasses.field(default=False, metadata=_MAY_CHANGE)
    frozen: tuple[str, ...] = ()
    ema: EmaConfig | None = None
    hang_seconds: float | None = dataclasses.field(default=HANG_SECONDS, metadata=_MAY_CHANGE)
    early_stopping_patience: int | None = dataclasses.field(default=None, metadata=_MAY_CHANGE)
    profile: StepChoice | None = dataclasses.field(default=None, metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        check_fields(self, AT_LEAST_ONE, "num_microbatches", "stats_period", "loss_chunk_elements")
        optional = ("eval_period", "eval_steps", "early_stopping_patience")
        check_fields(self, AT_LEAST_ONE, *optional, optional=True)
        check_fields(self, POSITIVE, "hang_seconds", optional=True)
        check_patterns("frozen", self.frozen)
        if self.profile not in (None, SIGNAL_TO_PROFILE):
            steps = chosen_steps(self.profile, f"profile, unless it is {SIGNAL_TO_PROFILE!r},")
            if isinstance(steps, range) and steps.step == 1 and len(steps) > _MAX_TRACED:
                raise UserError(
                    f"profile {self.profile!r} is one trace of more than {_MAX_TRACED:,} steps. "
                    "Choose fewer steps, such as '10:12', or set a period, as in '10::1000'."
                )


AnyOptimizer: TypeAlias = AdafactorConfig | AdamWConfig | GradientTransformation


def is_optimizer(value: object) -> bool:
    """Returns whether a value is the settings of an optimizer, or an optimizer like optax's."""
    return isinstance(value, AnyOptimizer) and not isinstance(value, type)
