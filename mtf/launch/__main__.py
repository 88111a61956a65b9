"""`python -m mtf.launch TARGET [options] -- RECIPE …`: starts the processes of a run."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import sys
from collections.abc import Sequence

from mtf.command import exit_status, new_parser
from mtf.errors import UserError
from mtf.launch import gke, hosts, local, slurm, tpu_pod

_TARGETS = {
    "local": local.launch,
    "slurm": slurm.launch,
    "hosts": hosts.launch,
    "tpu-pod": tpu_pod.launch,
    "gke": gke.launch,
}
# Targets that start a run and return, or wait for it.
_WITHOUT_ACTIONS = ("local", "slurm")

_EPILOG = """\
examples:
  python -m mtf.launch local --processes 2 -- recipes.quickstart --set train_steps=50
  python -m mtf.launch local --processes 4 --devices-per-process 2 -- recipes.quickstart
  python -m mtf.launch slurm --nodes 2 --gpus-per-node 8 --time 24:00:00 -- \\
      recipes.t5_1_1_base_c4 --set model_dir=runs/base
  python -m mtf.launch hosts --hosts gpu1,gpu2 -- recipes.t5_1_1_base_c4 \\
      --set model_dir=/shared/base
  python -m mtf.launch hosts status --hosts gpu1,gpu2 --name t5_1_1_base_c4
  python -m mtf.launch tpu-pod --name mine --zone us-central2-b --type v4-32 --create -- \\
      recipes.t5_1_1_base_c4 --set model_dir=gs://bucket/base

What follows -- are the arguments of `python -m mtf.run`, which each process runs. Exit status: 0
done; otherwise that of the first process that failed.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = _parser().parse_args(arguments[:end])
    options.command = [*getattr(options, "command", ()), *arguments[end + 1 :]]
    options.given = arguments[:end]
    return exit_status(lambda: _main(options), only_shows=options.dry_run)


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("launch", "Start the processes of a run.", _EPILOG)
    targets = parser.add_subparsers(dest="target", required=True, metavar="TARGET")
    local.add_options(targets.add_parser("local", help="processes on this machine"))
    slurm.add_options(targets.add_parser("slurm", help="a job of SLURM"))
    hosts.add_options(targets.add_parser("hosts", help="machines that ssh reaches"))
    tpu_pod.add_options(targets.add_parser("tpu-pod", help="a slice of Cloud TPU"))
    gke.add_options(targets.add_parser("gke", help="TPUs in Google Kubernetes Engine"))
    for name, target in targets.choices.items():
        target.add_argument(
            "--dry-run", action="store_true", help="print what would be started or submitted"
        )
        if name in _WITHOUT_ACTIONS:
            text = "arguments of `python -m mtf.run`, after --"
            target.add_argument("command", nargs="*", metavar="-- RECIPE …", help=text)
    return parser


def _main(options: argparse.Namespace) -> int:
    if not options.command and getattr(options, "action", "start") == "start":
        raise UserError(
            f"The recipe is missing. Write it after --, for example: python -m mtf.launch "
            f"{options.target} … -- recipes.quickstart"
        )
    return _TARGETS[options.target](options)


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
