"""The checkpoints that Google released, and what a run starts from."""

from __future__ import annotations

import re
from pathlib import Path

import fiddle as fdl

from mtf.checkpoints.settings import RestoreCheckpointConfig
from mtf.errors import UserError, did_you_mean

_STEP = re.compile(r"checkpoint_(\d+)")
_SIZES = ("small", "base", "large", "xl", "xxl")

# Google's checkpoints in T5X's layout (T5X: docs/models.md) → their step.
RELEASED_STEPS = {
    **{f"t5_1_1_{size}": 1_000_000 for size in _SIZES},
    **{f"t5_1_1_lm100k_{size}": 1_100_000 for size in _SIZES},
    **{f"mt5_{size}": 1_000_000 for size in _SIZES},
    **{f"mt5_lm_adapted/{size}": 1_100_000 for size in _SIZES},
    **{f"byt5_{size}": 1_000_000 for size in _SIZES},
}


def released(name: str) -> fdl.Config[RestoreCheckpointConfig]:
    """Returns a released T5X checkpoint of Google's by name, such as `mt5_base`.

    Raises:
      UserError: there is none of that name.
    """
    if name not in RELEASED_STEPS:
        raise UserError(
            f"There is no released checkpoint {name!r}; there are {', '.join(RELEASED_STEPS)}."
            + did_you_mean(name, RELEASED_STEPS)
        )
    step = RELEASED_STEPS[name]
    path = f"gs://t5-data/pretrained_models/t5x/{name}/checkpoint_{step}"
    return fdl.Config(RestoreCheckpointConfig, path, mode="specific")


def start(name: str, path: str | None = None) -> fdl.Config[RestoreCheckpointConfig]:
    """Returns what a recipe starts from: a released checkpoint, unless another's `path` is given.

    The run is refused if it turns out to be of another step than `start_step` says.
    """
    config = released(name)
    config.path = path or config.path
    config.step = start_step(name, path)
    return config


def start_step(name: str, path: str | None = None) -> int:
    """Returns the step of what `start(name, path)` starts from, from which a recipe counts its own.

    A Hugging Face directory has no step: 0. Otherwise the name `checkpoint_STEP` says it, or the
    latest such name in the directory. Where none does, it is taken to be a copy of the released
    checkpoint.
    """
    if path is None:
        return RELEASED_STEPS[name]
    local = Path(path).expanduser()
    if local.is_dir():
        from conversion.huggingface_reader import is_huggingface

        if is_huggingface(local):
            return 0
    inside = [*local.glob("checkpoint_*"), *local.glob("checkpoints/checkpoint_*")]
    matches = (_STEP.fullmatch(each.name) for each in (local, *inside))
    steps = [int(match[1]) for match in matches if match]
    return max(steps, default=RELEASED_STEPS[name])
