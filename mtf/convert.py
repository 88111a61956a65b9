"""Entry point of `python -m mtf.convert`; see `mtf.cli.convert`."""

from mtf.base import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

from mtf.cli.convert.command import main as main

if __name__ == "__main__":
    signals.leave(main())
