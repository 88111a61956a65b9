"""Entry point of `python -m mtf.run`; see `mtf.cli.run`."""

import gc

from mtf.base import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported
    # Imports leave little garbage, and looking for it takes a sixth of a dry run. `run_recipe`
    # enables garbage collection before a job runs.
    gc.disable()

from mtf.cli.run import main as main

if __name__ == "__main__":
    signals.leave(main())
