"""Shows whether a recipe fits a machine and how fast it runs (`python -m mtf plan RECIPE …`).

A child process compiles the training step, so this module does not import JAX.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from mtf import config as config_lib
from mtf.base import signals
from mtf.base.errors import RunError, UserError
from mtf.base.progress import waiting
from mtf.cli.command import add_change_options, add_trust_option, exit_status, new_parser
from mtf.cli.plan import report
from mtf.cli.plan.targets import Target, parse_target, target_chips
from mtf.config import lookup
from mtf.jobs import Train

_EPILOG = f"""\
examples:
  python -m mtf plan recipes.t0pp_xxl --target v4:4x8x8
  python -m mtf plan recipes.t0pp_xxl --target v4:4x8x8 \\
      --set model.network.remat_policy=full

A target is CHIP:SHAPE, a slice of TPUs or hosts × GPUs, or cpu:N. The chips are
{", ".join(target_chips())}.
The devices need not be available, because the program is compiled but not run. The exit status is
0 if the run fits, 1 if it does not fit or the compiler failed, and 2 if the arguments are invalid.
"""

_LINES_OF_ERROR = 5
# The child process only compiles, so it must not occupy the accelerators of this machine.
_VARIABLES = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


def make_parser() -> argparse.ArgumentParser:
    """Creates the parser for the command's arguments."""
    parser = new_parser("plan", "Compile a recipe for a machine, available or not.", _EPILOG)
    names = "a training recipe, given as package.module.recipe or file.py:recipe"
    parser.add_argument("recipe", metavar="RECIPE[(kw=literal,…)]", help=names)
    add = parser.add_argument
    add("--target", required=True, metavar="CHIP:SHAPE", help="the machine, such as v4:4x8x8")
    add_change_options(parser)
    add_trust_option(add)
    add("--json", action="store_true", help="print the plan as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    options = make_parser().parse_args(argv)
    return exit_status(lambda: _main(options), only_shows=True)


def _main(options: argparse.Namespace) -> int:
    lookup.import_from_here()
    config_lib.trust_runs(options.trust)
    config = config_lib.resolve(options.recipe)
    config, problems = config_lib.try_overrides(config, options.overrides)
    target = parse_target(options.target)  # The recipe's module may have registered the chip.
    target.check_compiler()
    problems += config_lib.find_problems(config)
    if problems:
        raise UserError(config_lib.summarize(problems + config_lib.find_refusals(config)))
    job = config_lib.build(config)
    if not isinstance(job, Train):
        raise UserError(
            f"{options.recipe} does not train a model; expected a training recipe, such as "
            "recipes.t0pp_xxl."
        )
    job.partitioner.mesh_shape(target.num_devices)  # Check the mesh before the compiler starts.
    plan = _compile(config, target)
    if options.json:
        print(json.dumps({"recipe": options.recipe, **plan}, indent=1))
    else:
        print(report.text(options.recipe, target, plan))
    return 0 if plan["fits"] else 1


def _compile(config: fdl.Config, target: Target) -> dict[str, Any]:
    """Compiles the step of a training job in a child process and returns the job's plan.

    The plan is a dict with the keys `target`, `platform`, `num_devices`, `available_bytes`, `fits`
    and those that `mtf.cli.plan.child` returns, which describe the memory and the work of each
    device or, if the program does not fit, only the memory.

    Raises:
      UserError: the mesh or the batch size does not fit the number of devices.
      RunError: the compiler failed or aborted.
    """
    # The child process does not know chips that a module of the user registered.
    fields = {"config": config_lib.dump_json(config), "target": pickle.dumps(target).hex()}
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with waiting(f"compiling for {target}"):
        child = subprocess.run(
            [sys.executable, "-m", "mtf.cli.plan.child"],
            input=json.dumps(fields),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=os.environ | _VARIABLES | {"PYTHONPATH": path, signals.LAUNCHER: str(os.getpid())},
        )
    if child.returncode:
        raise RunError(_why_aborted(target, child.returncode, child.stderr))
    found = json.loads(child.stdout.splitlines()[-1])
    if "refused" in found:
        raise UserError(found["refused"])
    if "failed" in found:
        raise RunError(f"The compiler for {target} failed: {found['failed']}")
    return {
        "target": str(target),
        "platform": target.platform,
        "num_devices": target.num_devices,
        "fits": "parts" in found and found["needed_bytes"] <= target.memory,
        **found,
        "available_bytes": target.memory,
    }


def _why_aborted(target: Target, status: int, log: str) -> str:
    how = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
    if status == -signal.SIGKILL:
        how += ", probably because this machine has too little memory for the compiler"
    lines = [line for line in log.splitlines() if line.strip()][-_LINES_OF_ERROR:]
    return f"The compiler for {target} {how}. Its last output was:\n  " + "\n  ".join(lines)
