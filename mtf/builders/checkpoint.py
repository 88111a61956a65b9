"""Returns configs that determine from which checkpoint a run starts and how often it saves."""

from __future__ import annotations

from pathlib import Path

import fiddle as fdl

from conversion import formats
from mtf.base.errors import UserError, did_you_mean
from mtf.checkpoints.settings import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig
from mtf.storage import AnyPath

# Name of a checkpoint released in T5X's layout (docs/models.md of T5X) → its step.
RELEASED_STEPS = {
    name.format(size): step
    for name, step in (
        ("t5_1_1_{}", 1_000_000),
        ("t5_1_1_lm100k_{}", 1_100_000),
        ("mt5_{}", 1_000_000),
        ("mt5_lm_adapted/{}", 1_100_000),
        ("byt5_{}", 1_000_000),
    )
    for size in ("small", "base", "large", "xl", "xxl")
} | {f"umt5/{size}": 1_000_000 for size in ("small", "base", "xl", "xxl")}


def start(name: str, path: str | None = None) -> fdl.Config[RestoreCheckpointConfig]:
    """Returns a config that restores a checkpoint released by Google, such as `mt5_base`.

    `path` is another checkpoint to restore instead, such as a local copy.
    """
    if name not in RELEASED_STEPS:
        known = f" The released ones are {', '.join(RELEASED_STEPS)}."
        hint = did_you_mean(name, RELEASED_STEPS) or known
        raise UserError(f"There is no released checkpoint {name!r}.{hint}")
    step = RELEASED_STEPS[name]
    if path is None:
        path = f"gs://t5-data/pretrained_models/t5x/{name}/checkpoint_{step}"
    else:
        step = _step(path, step)
    return fdl.Config(RestoreCheckpointConfig, path, mode="specific", step=step)


def _step(path: str, default: int) -> int:
    """Returns the latest step in the names of the checkpoints at `path`.

    Returns 0 for a format without steps, such as a Hugging Face directory. If no name contains a
    step, returns `default`, assuming that `path` contains a copy of the released checkpoint.
    """
    local: AnyPath = Path(path).expanduser()
    if local.is_dir() and (found := formats.find(local)):
        if found[0].step_name is None:
            return 0
        local = found[1]
    inside = [*local.glob("checkpoint_*"), *local.glob("checkpoints/checkpoint_*")]
    names = (each.name.removesuffix(".index") for each in (local, *inside))
    steps = map(formats.step_in, names)
    return max((step for step in steps if step is not None), default=default)


def every(
    period: int,
    *,
    keep: int | None = None,
    restore: fdl.Config[RestoreCheckpointConfig] | None = None,
) -> fdl.Config[CheckpointConfig]:
    """Returns a config that saves every `period` steps and keeps the last `keep` checkpoints."""
    save = fdl.Config(SaveCheckpointConfig, period=period, keep=keep)
    return fdl.Config(CheckpointConfig, save=save, restore=restore)
