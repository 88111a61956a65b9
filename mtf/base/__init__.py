"""Code that all layers use: errors, signals, files, progress, and the processes of a run."""
