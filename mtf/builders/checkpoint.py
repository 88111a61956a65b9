"""Returns configs that determine from which checkpoint a run starts and how often it saves."""

from __future__ import annotations

import re
from pathlib import Path

import fiddle as fdl

from mtf.base.errors import UserError, did_you_mean
from mtf.checkpoints.settings import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig

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


def released(name: str) -> fdl.Config[RestoreCheckpointConfig]:
    """Returns a config that restores a checkpoint released by Google, such as `mt5_base`."""
    if name not in RELEASED_STEPS:
        raise UserError(
            f"There is no released checkpoint {name!r}; expected one of "
            f"{', '.join(RELEASED_STEPS)}.{did_you_mean(name, RELEASED_STEPS)}"
        )
    step = RELEASED_STEPS[name]
    path = f"gs://t5-data/pretrained_models/t5x/{name}/checkpoint_{step}"
    return fdl.Config(RestoreCheckpointConfig, path, mode="specific")


def start(name: str, path: str | None = None) -> fdl.Config[RestoreCheckpointConfig]:
    """Returns the config of `released` with `step` set and, if `path` is given, with that path."""
    config = released(name)
    config.path = path or config.path
    config.step = RELEASED_STEPS[name] if path is None else _step(path, RELEASED_STEPS[name])
    return config


def _step(path: str, default: int) -> int:
    """Returns the latest step of the checkpoints at `path`, or 0 for a Hugging Face directory.

    The step is read from names of the form `checkpoint_STEP` or, for Mesh TensorFlow,
    `model.ckpt-STEP`. If there are none, returns `default`, assuming that `path` contains a copy of
    the released checkpoint.
    """
    local = Path(path).expanduser()
    if local.is_dir():
        from conversion.huggingface_reader import is_huggingface
        from conversion.mesh_tensorflow import find_prefix

        if is_huggingface(local):
            return 0
        if prefix := find_prefix(local):
            local = local / prefix.name
    inside = [*local.glob("checkpoint_*"), *local.glob("checkpoints/checkpoint_*")]
    names = (each.name.removesuffix(".index") for each in (local, *inside))
    matches = (re.fullmatch(r"(?:checkpoint_|model\.ckpt-)(\d+)", name) for name in names)
    return max((int(match[1]) for match in matches if match), default=default)


def every(
    period: int,
    *,
    keep: int | None = None,
    restore: fdl.Config[RestoreCheckpointConfig] | None = None,
) -> fdl.Config[CheckpointConfig]:
    """Returns a config that saves every `period` steps and keeps the last `keep` checkpoints."""
    save = fdl.Config(SaveCheckpointConfig, period=period, keep=keep)
    return fdl.Config(CheckpointConfig, save=save, restore=restore)
