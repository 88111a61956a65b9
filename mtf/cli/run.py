"""Shows, checks and runs a recipe (`python -m mtf.run RECIPE`).

`--help` does not import Fiddle, and JAX is imported only by the methods of a job.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from mtf.base.processes.process_info import add_process_options
from mtf.cli import flags
from mtf.cli.command import add_change_options, add_trust_option, exit_status, new_parser

_EPILOG = """\
examples:
  python -m mtf.run --list
  python -m mtf.run recipes.quickstart --help
  python -m mtf.run recipes.quickstart --help model.network.dtype
  python -m mtf.run recipes.quickstart
  python -m mtf.run recipes.quickstart --print flat
  python -m mtf.run recipes.quickstart --set train_steps=50 \\
      model.network.dropout_rate=0.0
  python -m mtf.run recipes.quickstart --set \\
      optimizer=@mtf.training.AdamWConfig
  python -m mtf.run my.py:recipe --set batch_size=64 --dry-run
  python -m mtf.run --from runs/quickstart-20250101-120000 \\
      --set train_steps=2000
  python -m mtf.run recipes.quickstart \\
      --sweep model.network.emb_dim=128,256 random_seed=0,1

A value is a Python literal, a bare word if the field accepts a string, or @package.builder(kw=…).
+PATH=VALUE adds a key to a dict.
Exit status: 0 on success, or if a signal stopped the run after it had saved; 1 if the run failed;
2 if it was refused and nothing was written. A second Ctrl-C stops a run without saving.
"""


def make_parser() -> argparse.ArgumentParser:
    """Creates the parser for the command's arguments."""
    title = "Run a recipe, or show what it would do."
    parser = new_parser("run", title, _EPILOG, add_help=False)
    names = "package.module.recipe, or file.py:recipe"
    parser.add_argument("recipe", nargs="*", metavar="RECIPE[(kw=literal,…)]", help=names)
    add_change_options(parser)
    show = parser.add_argument_group("show instead of run").add_argument
    explained = "explain the command, the recipe, or the field PATH of its config"
    show("-h", "--help", nargs="?", const="", metavar="PATH", help=explained)
    kinds = ("flat", "all", "history", "python", "json", "sharding")
    printed = "flat: values that are not defaults; all: all values; history: where each was set; "
    printed += "python, json: the config as code or JSON; sharding: how parameters are split"
    show("--print", choices=kinds, help=printed)
    devices = "number of devices for --print sharding; they need not exist on this machine"
    show("--devices", type=int, metavar="N", help=devices)
    show("--diff", metavar="OTHER", help="compare with a recipe, run directory or config.json")
    built = "show sizes and devices; check the checkpoint, data and vocabulary; write nothing"
    show("--dry-run", action="store_true", help=built)
    show("--list", action="store_true", help="list all recipes and fiddlers")
    sweep = parser.add_argument_group("run several times").add_argument
    values = "run the recipe for all combinations of these values, one run after another"
    sweep("--sweep", nargs="+", action="extend", metavar="PATH=V1,V2", help=values)
    modes = "grid: all combinations; random: N draws, also from PATH=LOW..HIGH and "
    modes += "PATH=log:LOW..HIGH; optuna: N runs whose values depend on the results of earlier runs"
    choices = ("grid", "random", "optuna")
    sweep("--sweep-mode", choices=choices, default="grid", help=modes)
    number = "number of runs for --sweep-mode random and optuna"
    sweep("--sweep-runs", type=int, metavar="N", help=number)
    metric = "metric to sort the runs by (default: the one that ranks checkpoints, or the loss)"
    sweep("--sweep-metric", metavar="NAME", help=metric)
    engine = parser.add_argument_group("engine").add_argument
    text = "engine that runs the job; t5x uses the same values and batches as mtf (docs/t5x.md)"
    engine("--engine", choices=("mtf", "t5x"), default="mtf", help=text)
    resume = parser.add_argument_group("resume").add_argument
    resume("--from", dest="from_dir", metavar="RUN_DIR", help="resume the run in this directory")
    differs = "allow this field to differ from its value in the run directory"
    resume("--allow", action="append", default=[], metavar="PATH", help=differs)
    add_trust_option(resume)
    add_process_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    options = flags.parse(parser, arguments)
    if options.help == "" and not options.recipe and options.from_dir is None:
        parser.print_help()
        return 0
    command = f"python -m mtf.run {shlex.join(arguments)}"
    only_shows = flags.only_shows(options) or options.dry_run or options.list

    def run() -> int:
        if not only_shows and sys.stderr.isatty():
            print("starting …", file=sys.stderr)  # Imports may take seconds.
        from mtf.cli import run_recipe  # Imports Fiddle, which --help does not need.

        return run_recipe.run(parser, options, command)

    return exit_status(run, only_shows=only_shows)
