#!/usr/bin/env python
"""The command: `python train.py batch_size=32`."""

import nemo_run as run
import settings

if __name__ == "__main__":
    run.cli.main(
        settings.train,
        default_factory=settings.recipe,
        default_executor=run.Config(run.LocalExecutor),
    )
