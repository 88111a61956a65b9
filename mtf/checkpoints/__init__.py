"""Saves and restores trees of arrays."""

from mtf.checkpoints.settings import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig

__all__ = ["CheckpointConfig", "RestoreCheckpointConfig", "SaveCheckpointConfig"]
