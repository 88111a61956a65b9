"""Contains code that all layers use: errors, signals, files, progress and processes of a run."""
