"""Downloads promptsource's templates (`python -m mtf prompts fetch`)."""

from __future__ import annotations

from collections.abc import Sequence

from mtf.cli.command import exit_status, new_parser
from mtf.data.tasks.prompts.fetch import fetch

_EPILOG = """\
`python -m mtf data --list PREFIX` lists the prompts of a dataset, and `python -m mtf data TASK`
shows examples of a prompt.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = new_parser("prompts", "Download promptsource's templates to the cache.", _EPILOG)
    parser.add_argument("command", choices=("fetch",))
    parser.parse_args(argv)
    return exit_status(lambda: print(f"promptsource's templates: {fetch()}"), only_shows=False)
