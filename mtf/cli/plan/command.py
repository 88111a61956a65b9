"""Shows whether a recipe fits a machine and how fast it runs (`python -m mtf plan RECIPE …`)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from mtf import config as config_lib
from mtf.base.errors import UserError
from mtf.cli.command import add_change_options, add_trust_option, exit_status, new_parser
from mtf.cli.plan import report
from mtf.cli.plan.compiling import compile_plan
from mtf.cli.plan.targets import parse_target, target_chips
from mtf.config import lookup
from mtf.jobs import Train

_EPILOG = f"""\
examples:
  python -m mtf plan recipes.t0pp_xxl --target v4:4x8x8
  python -m mtf plan recipes.t0pp_xxl --target v4:4x8x8 --set model.network.remat_policy=full

A target is CHIP:SHAPE, a slice of TPUs or hosts × GPUs, or cpu:N. The chips are
{", ".join(target_chips())}.
The devices need not be available, because the program is compiled but not run. The exit status is
0 if the run fits, 1 if it does not fit or the compiler failed, and 2 if the arguments are invalid.
"""


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
    changes = [config_lib.Override(kind, text) for kind, text in options.overrides]
    config, problems = config_lib.try_overrides(config_lib.resolve(options.recipe), changes)
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
    plan = compile_plan(config, target)
    if options.json:
        print(json.dumps({"recipe": options.recipe, **plan}, indent=1))
    else:
        print(report.text(options.recipe, target, plan))
    return 0 if plan["fits"] else 1
