"""Entry point of `python -m mtf.run`; see `mtf.cli.run`."""

from mtf.base import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

from mtf.cli.run import main as main

if __name__ == "__main__":
    signals.leave(main())
