"""`python -m mtf.plan RECIPE --target v4:4x8x8`: whether a recipe fits a machine, and how fast."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mtf.command import add_change_options, exit_status, new_parser
from mtf.errors import UserError
from mtf.plan.targets import parse_target

if TYPE_CHECKING:
    import fiddle as fdl

    from mtf.plan.compiling import Request

_EPILOG = """\
examples:
  python -m mtf.plan recipes.t0pp_xxl --target v4:4x8x8
  python -m mtf.plan recipes.t0pp_xxl --target v4:4x8x8 --set model.network.remat_policy=full
  python -m mtf.plan recipes.t0pp_xxl --target v4:4x8x8 --search partitions=4,8 fsdp=1,all
  python -m mtf.plan recipes.t0_eval --network recipes.t0pp_xxl --target v4:2x2x4

A target is a slice of TPU chips (v2, v3, v4, v5e, v5p, v6e, tpu7x), hosts × GPUs (a100, h100,
h200), or cpu:N. The devices need not be here: the program is compiled ahead of time, and nothing
runs. Exit status: 0 it fits, 1 it does not fit or the compiler failed, 2 refused.
"""


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = new_parser("plan", "Compile a recipe for a machine that need not be here.", _EPILOG)
    names = "package.module.recipe, or file.py:recipe"
    parser.add_argument("recipe", metavar="RECIPE[(kw=literal,…)]", help=names)
    add = parser.add_argument
    add("--target", required=True, metavar="CHIP:SHAPE", help="the machine, such as v4:4x8x8")
    add_change_options(parser)
    kinds = "what to compile (default: what the recipe's job mainly runs)"
    add("--program", choices=("train", "rank", "decode"), help=kinds)
    network = "training recipe whose network an evaluation or inference recipe uses"
    add("--network", metavar="RECIPE", help=network)
    text = "write the text of the compiled program, of XLA, to a file"
    add("--hlo", metavar="FILE", help=text)
    text = "draw the memory of a device by part"
    add("--plot", metavar="FILE.png", help=text)
    text = (
        "compile combinations of partitions, fsdp, microbatches and remat, and show a table; "
        "fsdp=1,64 gives the values to try, and fsdp=all all devices that partitions leave"
    )
    add("--search", nargs="*", metavar="NAME=VALUE,…", help=text)
    add("--json", action="store_true", help="print the answer as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    options = make_parser().parse_args(argv)
    return exit_status(lambda: _main(options), only_shows=True)


def _main(options: argparse.Namespace) -> int:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    target = parse_target(options.target)
    # Imported here because --help does not need them.
    from mtf.plan import report
    from mtf.plan.changes import smallest_change, trains
    from mtf.plan.compiling import Request, compile_plan
    from mtf.plan.plot import plot_memory
    from mtf.plan.topology import check_compiler

    check_compiler(target)
    config = _config(options.recipe, options.overrides)
    network = None if options.network is None else _config(options.network, [])
    request = Request(config, target, options.program, network, options.hlo)
    if options.search is not None:
        return _search(request, options.search)
    try:
        plan = compile_plan(request)
    except UserError as error:
        if not trains(request):
            raise
        change = smallest_change(request, _note)
        raise UserError(f"{error}\n{report.change_text(target, change)}") from error
    change = None if plan.fits else smallest_change(request, _note)
    if options.plot is not None and plan.compiles:
        plot_memory(options.recipe, plan, options.plot)
    if options.json:
        answer = {"recipe": options.recipe, **plan.as_json()}
        if change is not None:
            answer["change"] = {"settings": change.settings, **change.plan.as_json()}
        print(json.dumps(answer, indent=1))
    else:
        print(report.text(options.recipe, plan))
        if not plan.fits:
            print(report.change_text(target, change))
    return 0 if plan.fits else 1


def _note(text: str) -> None:
    print(f"trying {text} …", file=sys.stderr, flush=True)


def _search(request: Request, choices: Sequence[str]) -> int:
    from mtf.plan.search import search, table

    found = search(request, choices, lambda line: print(line, flush=True))
    print(f"\n{table(found)}")
    return 0 if found else 1


def _config(recipe: str, overrides: Sequence[tuple[Any, str]]) -> fdl.Config:
    """Returns the config of a recipe with overrides; raises UserError with all its problems."""
    from mtf import config as config_lib

    changes = [config_lib.Override(kind, text) for kind, text in overrides]
    config, problems = config_lib.try_overrides(config_lib.resolve(recipe), changes)
    problems += config_lib.find_problems(config)
    if problems:
        raise UserError(config_lib.summarize(problems + config_lib.find_refusals(config)))
    return config


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
