"""Saving and restoring."""

from __future__ import annotations

from typing import Literal

import fiddle as fdl

from mtf.checkpoints.config import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig


def checkpoint(
    *,
    period: int | None = 1000,
    keep: int | None = None,
    restore: fdl.Config[RestoreCheckpointConfig] | None = None,
) -> fdl.Config[CheckpointConfig]:
    """When to save, how many to keep, and what a fresh run starts from."""
    save = fdl.Config(SaveCheckpointConfig, period=period, keep=keep)
    return fdl.Config(CheckpointConfig, save=save, restore=restore)


def restore(
    path: str, mode: Literal["specific", "latest", "all"] = "specific"
) -> fdl.Config[RestoreCheckpointConfig]:
    """A checkpoint to start from, of our own or of T5X."""
    return fdl.Config(RestoreCheckpointConfig, path=path, mode=mode)
