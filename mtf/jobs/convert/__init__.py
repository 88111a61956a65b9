"""The job that converts a checkpoint."""
