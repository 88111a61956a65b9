"""Entry point of `python -m mtf.cache`; see `mtf.cli.cache`."""

from mtf.base import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

from mtf.cli.cache import main as main

if __name__ == "__main__":
    signals.leave(main())
