"""Saving and restoring trees of arrays."""

from mtf.checkpoints.settings import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig

__all__ = ["CheckpointConfig", "RestoreCheckpointConfig", "SaveCheckpointConfig"]
