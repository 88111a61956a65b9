"""`python -m mtf.doctor`: a page about the installation and the machine, for a bug report."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import sys
from collections.abc import Iterator, Sequence

from mtf.command import exit_status, new_parser
from mtf.doctor import machine, network, packages, training
from mtf.doctor.report import Section, shown
from mtf.errors import UserError
from mtf.storage import StorePath, as_path

_EPILOG = """\
examples:
  python -m mtf.doctor
  python -m mtf.doctor --no-train
  python -m mtf.doctor --bucket gs://my-bucket/runs

The report shows no secrets, and ~ and USER for the home directory and the user in paths. The exit
status is 0 if training works, otherwise 1; with --no-train, it is 0 if JAX finds devices.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    options = _parser().parse_args(argv)
    return exit_status(lambda: _main(options), only_shows=True)


def _parser() -> argparse.ArgumentParser:
    description = "Describe the installation and this machine, and try to train for two steps."
    parser = new_parser("doctor", description, _EPILOG)
    add = parser.add_argument
    add("--no-train", action="store_true", help="leave out the training run")
    bucket = "also try to read these addresses: gs://…, s3://… or https://…"
    add("--bucket", nargs="+", default=[], metavar="ADDRESS", help=bucket)
    return parser


def _main(options: argparse.Namespace) -> int:
    addresses = list(map(_address, options.bucket))
    problems: list[str] = []
    works = True
    for section in _sections(addresses, train=not options.no_train):
        print(section, end="\n\n", flush=True)
        problems += section.problems
        works = works and section.works
    print("problems")
    print("\n".join(f"  {shown(problem)}" for problem in problems) or "  none")
    return 0 if works else 1


def _address(text: str) -> StorePath:
    path = as_path(text)
    if not isinstance(path, StorePath):
        raise UserError(f"--bucket {text}: expected an address, such as gs://my-bucket/runs.")
    return path


def _sections(addresses: Sequence[StorePath], *, train: bool) -> Iterator[Section]:
    """Yields the sections of the report, each when it is known."""
    yield machine.versions()
    devices, num_devices = training.devices()
    yield devices
    yield machine.host()
    yield machine.variables()
    yield packages.extras()
    yield network.servers()
    yield network.credentials()
    if addresses:
        yield network.buckets(addresses)
    if train and num_devices is not None:
        yield training.training(num_devices)


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
