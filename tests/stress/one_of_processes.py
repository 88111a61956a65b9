"""`python -m mtf.run`, as one of several processes of a computation.

Arguments: its number, how many there are, the port of the first, and those of mtf.run.
"""

from __future__ import annotations

from mtf.base import signals

if __name__ == "__main__":
    signals.listen()  # as mtf.run does

import sys


def main() -> int:
    """Joins the others, and runs."""
    process, num_processes, port = map(int, sys.argv[1:4])
    import jax

    from mtf.cli import run

    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes, process)
    return run.main(sys.argv[4:])


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
