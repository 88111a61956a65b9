"""When checkpoints are written, and what a run starts from. Imports no jax."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from mtf.errors import UserError


@dataclasses.dataclass(frozen=True)
class SaveCheckpointConfig:
    """When and how a run saves (T5X: `SaveCheckpointConfig`).

    The last step is always saved, and on SIGTERM or Ctrl-C the current one.

    Attributes:
      period: steps between checkpoints; None: the last step only.
      keep: how many of the newest stay; None: all.
      dtype: of the parameters on disk. The optimizer's state stays float32.
    """

    period: int | None = 1000
    keep: int | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        for field in ("period", "keep"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise UserError(f"{field} must be at least 1 or None, not {value}.")
        if self.dtype not in ("float32", "bfloat16"):
            raise UserError(f"dtype must be 'float32' or 'bfloat16', not {self.dtype!r}.")


@dataclasses.dataclass(frozen=True)
class RestoreCheckpointConfig:
    """What a fresh run starts from (T5X: `RestoreCheckpointConfig`).

    A run directory that has checkpoints of its own continues from its latest, whatever is said
    here.

    Attributes:
      path: of our own checkpoints, T5X's zarr+msgpack or T5X's Orbax ones: one checkpoint for
        mode "specific", else a directory that holds them.
      mode: "specific", "latest", or "all" (for evaluation, every one in turn).
      assignment_map: (pattern, replacement) pairs. The first pattern that matches the whole name
        of a tensor of ours ("target/…", "state/param_states/…", "state/step") says what it is
        called there; replacement None leaves it as initialised.
      fallback_to_scratch: tensors that the checkpoint lacks stay as initialised, instead of being
        an error.
    """

    path: str
    mode: Literal["specific", "latest", "all"] = "latest"
    assignment_map: tuple[tuple[str, str | None], ...] = ()
    fallback_to_scratch: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("specific", "latest", "all"):
            raise UserError(f"mode must be 'specific', 'latest' or 'all', not {self.mode!r}.")
        for pattern, _ in self.assignment_map:
            try:
                re.compile(pattern)
            except re.error as error:
                raise UserError(
                    f"assignment_map: {pattern!r} is no regular expression: {error}."
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
