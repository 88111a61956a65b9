"""Settings of the optimizer, the schedule and the trainer. Imports no jax."""

from __future__ import annotations

import dataclasses
import math

from mtf.errors import UserError, check_at_least_one, did_you_mean

SCHEDULE_FACTORS = (
    "constant",
    "linear_warmup",
    "linear_decay",
    "rsqrt_decay",
    "rsqrt_normalized_decay",
    "decay_every",
    "cosine_decay",
)

MAX_STEP = 2**31 - 1  # The step is an int32, as T5X's.
_MAY_CHANGE = {"on_resume": "may change"}

FACTOR_PARTS = ("ROW", "COLUMN", "BATCH", "NONE")
# Logical axis → its part in Adafactor's factored second moment, for parameters of rank > 2
# (T5X: `adafactor.standard_logical_factor_rules`). BATCH dimensions are separate matrices.
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


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """A learning rate as a product of named factors (T5X: `create_learning_rate_scheduler`).

    Attributes:
      factors: names joined by " * ", among constant, linear_warmup, linear_decay, rsqrt_decay,
        rsqrt_normalized_decay, decay_every, cosine_decay. `linear_decay` brings its own constant
        and warm-up.
      base_learning_rate: the value of `constant`.
      warmup_steps: of linear_warmup; where the decays begin.
      decay_factor: of decay_every (a factor) and linear_decay (a slope per step).
      steps_per_decay: of decay_every.
      steps_per_cycle: of cosine_decay.
      step_offset: step at which the schedule begins.
      min_learning_rate: never less than this.
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
                    f"factors: unknown schedule factor {name!r}; expected names among "
                    f"{', '.join(SCHEDULE_FACTORS)}, joined by ' * '."
                    + did_you_mean(name, SCHEDULE_FACTORS)
                )
        _check_not_negative(self, "base_learning_rate", "decay_factor", "min_learning_rate")
        _check_steps(self, "steps_per_decay", "steps_per_cycle", least=1)
        _check_steps(self, "step_offset", "warmup_steps")
        needs_warmup = {"linear_warmup", "linear_decay", "rsqrt_decay", "rsqrt_normalized_decay"}
        if self.warmup_steps < 1 and needs_warmup & set(self.names):
            raise UserError(
                f"warmup_steps must be at least 1 for {self.factors!r}, not {self.warmup_steps}."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The factors' names."""
        return tuple(name.strip() for name in self.factors.split("*"))


@dataclasses.dataclass(frozen=True)
class AdafactorConfig:
    """Adafactor as T5X has it (Shazeer & Stern 2018; T5X: `adafactor.py`).

    Attributes:
      learning_rate: the schedule; its value is multiplied by each parameter's scale.
      decay_rate: exponent of the second moment's decay.
      step_offset: step at which fine-tuning began, for the decay.
      factored: row and column sums instead of the whole second moment of matrices.
      min_dim_size_to_factor: smaller matrices are not factored.
      logical_factor_rules: for parameters of rank > 2.
      multiply_by_parameter_scale: update relative to the parameter's root mean square.
      clipping_threshold: of an update's root mean square; None: no clipping.
      beta1: first moment, None: none.
      weight_decay_rate: fraction of the parameter taken off each step; None: none.
      weight_decay_rate_lr_exponent: multiplies that fraction by lr ** exponent.
      global_norm_clip_threshold: of all gradients together; None: no clipping.
      epsilon1: added to squared gradients.
      epsilon2: smallest parameter scale.
    """

    learning_rate: ScheduleConfig
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
        _check_rate(self, "decay_rate", *(["beta1"] if self.beta1 is not None else []))
        _check_positive(self, "clipping_threshold", "global_norm_clip_threshold")
        # With 0, a gradient of 0 would be divided by 0.
        _check_positive(self, "epsilon1", optional=False)
        weight_decay = ("weight_decay_rate", "weight_decay_rate_lr_exponent")
        _check_not_negative(self, "epsilon2", *weight_decay)
        _check_steps(self, "step_offset")
        check_at_least_one(self, "min_dim_size_to_factor")
        axes = [axis for axis, _ in self.logical_factor_rules]
        for axis, part in self.logical_factor_rules:
            if part not in FACTOR_PARTS:
                raise UserError(
                    f"logical_factor_rules: ({axis!r}, {part!r}): expected one of "
                    f"{', '.join(FACTOR_PARTS)}.{did_you_mean(part, FACTOR_PARTS)}"
                )
            if axes.count(axis) > 1:
                raise UserError(f"logical_factor_rules: {axis!r} has more than one rule.")


@dataclasses.dataclass(frozen=True)
class AdamWConfig:
    """AdamW (Loshchilov & Hutter 2019), from optax.

    Attributes:
      learning_rate: the schedule.
      beta1: decay of the first moment.
      beta2: decay of the second moment.
      epsilon: added to the root of the second moment.
      weight_decay_rate: times the learning rate, taken off every parameter but norms' scales.
      global_norm_clip_threshold: of all gradients together; None: no clipping.
    """

    learning_rate: ScheduleConfig
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay_rate: float = 0.0
    global_norm_clip_threshold: float | None = None

    def __post_init__(self) -> None:
        _check_rate(self, "beta1", "beta2")
        _check_positive(self, "global_norm_clip_threshold")
        _check_positive(self, "epsilon", optional=False)
        _check_not_negative(self, "weight_decay_rate")


def _check_rate(settings: object, *fields: str) -> None:
    for field in fields:
        value = getattr(settings, field)
        if not 0.0 <= value < 1.0:
            raise UserError(f"{field} must be in [0, 1), not {value}.")


def _check_positive(settings: object, *fields: str, optional: bool = True) -> None:
    for field in fields:
        value = getattr(settings, field)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{field} must be positive{' or None' * optional}, not {value}.")


def _check_not_negative(settings: object, *fields: str) -> None:
    for field in fields:
        value = getattr(settings, field)
        if value is not None and not 0 <= value < math.inf:
            raise UserError(f"{field} must be a finite number and not negative, not {value}.")


def _check_steps(settings: object, *fields: str, least: int = 0) -> None:
    for field in fields:
        value = getattr(settings, field)
        if not least <= value <= MAX_STEP:
            raise UserError(f"{field} must be in [{least}, 2**31), not {value}.")


@dataclasses.dataclass(frozen=True)
class TrainerConfig:
    """How the training step and the loop run (T5X: `trainer.Trainer` and `train.train`).

    Attributes:
      num_microbatches: parts of a batch whose gradients are added up before the update.
      stats_period: steps between lines of progress, TensorBoard and metrics.jsonl.
      eval_period: steps between evaluations; None: none.
      eval_steps: batches of each evaluation; None: all.
      loss_chunk_elements: logits are computed in parts of at most so many elements a device
        where the whole would have more, and never held together.
      skip_nonfinite_updates: a step whose loss or gradient norm is not finite leaves parameters
        and optimizer state as they are and is counted (`skipped_updates`), instead of ending the
        run. The batch is used up, and the step counter and the schedule go on.
    """

    num_microbatches: int = dataclasses.field(default=1, metadata=_MAY_CHANGE)
    stats_period: int = dataclasses.field(default=100, metadata=_MAY_CHANGE)
    eval_period: int | None = dataclasses.field(default=1000, metadata=_MAY_CHANGE)
    eval_steps: int | None = dataclasses.field(default=20, metadata=_MAY_CHANGE)
    loss_chunk_elements: int = dataclasses.field(default=2**25, metadata=_MAY_CHANGE)
    skip_nonfinite_updates: bool = dataclasses.field(default=False, metadata=_MAY_CHANGE)

    def __post_init__(self) -> None:
        check_at_least_one(self, "num_microbatches", "stats_period", "loss_chunk_elements")
        check_at_least_one(self, "eval_period", "eval_steps", optional=True)
