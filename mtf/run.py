"""`python -m mtf.run RECIPE`: shows, checks and runs a recipe.

`--help` imports no Fiddle; only a job's `run()` and `describe()` import JAX.
"""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import functools
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtf import flags
from mtf.command import add_change_options, exit_status, new_parser
from mtf.errors import UserError
from mtf.together import add_place_options, place_of, run_together

if TYPE_CHECKING:
    import fiddle as fdl

    from mtf.cluster.meeting import Meeting
    from mtf.cluster.places import Place

_EPILOG = """\
examples:
  python -m mtf.run --list
  python -m mtf.run recipes.quickstart --help
  python -m mtf.run recipes.quickstart --help model.network.dtype
  python -m mtf.run recipes.quickstart
  python -m mtf.run recipes.quickstart --print flat
  python -m mtf.run recipes.quickstart --set train_steps=50 model.network.dropout_rate=0.0
  python -m mtf.run recipes.quickstart --set \\
      "optimizer=@mtf.training.AdamWConfig(learning_rate=@mtf.builders.schedule.constant)"
  python -m mtf.run my.py:recipe --set batch_size=64 --dry-run
  python -m mtf.run --from runs/quickstart-20250101-120000 --set train_steps=2000
  python -m mtf.run recipes.quickstart --sweep model.network.emb_dim=128,256 random_seed=0,1

A value is a Python literal, arithmetic such as 2**20, a bare word if the field accepts a string, or
@package.builder(kw=…). +PATH=VALUE adds a key to a dict.
Exit status: 0 done, 1 failed, 2 refused (nothing written).
"""


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    title = "Run a recipe, or show what it would do."
    parser = new_parser("run", title, _EPILOG, add_help=False)
    names = "package.module.recipe, or file.py:recipe"
    parser.add_argument("recipe", nargs="*", metavar="RECIPE[(kw=literal,…)]", help=names)
    add_change_options(parser)
    show = parser.add_argument_group("show instead of run").add_argument
    explained = "explain the command, the recipe, or the field PATH of its config"
    show("-h", "--help", nargs="?", const="", metavar="PATH", help=explained)
    kinds = ("flat", "history", "python", "json", "sharding")
    printed = "values, where each was set, Python code, JSON, or how parameters are split"
    show("--print", choices=kinds, help=printed)
    devices = "number of devices for --print sharding; they need not be here"
    show("--devices", type=int, metavar="N", help=devices)
    show("--diff", metavar="OTHER", help="compare with a recipe, run directory or config.json")
    show("--graph", metavar="FILE.svg", help="draw the config (.svg .png .pdf .dot)")
    built = "show sizes and devices, and check checkpoint, data and vocabulary; write nothing"
    show("--dry-run", action="store_true", help=built)
    show("--list", action="store_true", help="list all recipes and fiddlers")
    sweep = parser.add_argument_group("run several times").add_argument
    values = "run the recipe for all combinations of these values, one run after another"
    sweep("--sweep", nargs="+", action="extend", metavar="PATH=V1,V2", help=values)
    modes = "grid: all combinations; zip: the first values, then the second ones, and so on; "
    modes += "random: N draws, also from PATH=LOW..HIGH and PATH=log:LOW..HIGH; "
    modes += "optuna: N runs whose values Optuna chooses by the results of those before"
    choices = ("grid", "zip", "random", "optuna")
    sweep("--sweep-mode", choices=choices, default="grid", help=modes)
    number = "number of runs of --sweep-mode random and optuna"
    sweep("--sweep-runs", type=int, metavar="N", help=number)
    metric = "metric that sorts the runs (default: the one that ranks checkpoints, or the loss)"
    sweep("--sweep-metric", metavar="NAME", help=metric)
    engine = parser.add_argument_group("engine").add_argument
    text = "what runs the job: mtf, or T5X with the same values and batches (docs/t5x.md)"
    engine("--engine", choices=("mtf", "t5x"), default="mtf", help=text)
    resume = parser.add_argument_group("resume").add_argument
    resume("--from", dest="from_dir", metavar="RUN_DIR", help="resume the run in this directory")
    differs = "allow this field to differ from the config of the run directory"
    resume("--allow", action="append", default=[], metavar="PATH", help=differs)
    add_place_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    options = flags.parse(parser, arguments)
    if options.help == "" and not options.recipe and options.from_dir is None:
        parser.print_help()
        return 0
    command = f"python -m mtf.run {shlex.join(arguments)}"
    only_shows = _only_shows(options) or options.dry_run or options.list
    return exit_status(lambda: _main(parser, options, command), only_shows=only_shows)


def _only_shows(options: argparse.Namespace) -> bool:
    return bool(options.print or options.diff or options.graph or options.help is not None)


def _main(parser: argparse.ArgumentParser, options: argparse.Namespace, command: str) -> int:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())

    # Imported here because --help does not need Fiddle.
    from mtf import config as config_lib

    if options.list or (options.help == "" and options.recipe):
        if options.unknown:
            raise UserError(config_lib.summarize(flags.refusals(options.unknown, parser)))
        _explain(options)
        return 0
    try:
        config, name = _start(options)
    except UserError as error:
        refused = flags.refusals(options.unknown, parser)
        raise UserError(config_lib.summarize([*refused, str(error)])) from None
    overrides = [config_lib.Override(kind, text) for kind, text in options.overrides]
    config, problems = config_lib.try_overrides(config, overrides)
    problems = flags.refusals(options.unknown, parser, config) + problems
    problems += config_lib.find_problems(config)
    runs = options.dry_run or not _only_shows(options)
    if problems and runs:
        problems += config_lib.find_refusals(config)
    elif problems:
        # A config can be shown before its required values are set.
        problems = [p for p in problems if not p.startswith("Missing required values")]
    if problems:
        raise UserError(config_lib.summarize(problems))
    if options.sweep:
        return _sweep(config, name, options)
    _show(config, name, options)
    return _run(config, name, options, command) if runs else 0


def _explain(options: argparse.Namespace) -> None:
    """Prints the recipes, or the help of one."""
    from mtf import explain

    if options.list:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(explain.listing(width), end="")
    else:
        print(explain.recipe_help(options.recipe[0]), end="")


def _start(options: argparse.Namespace) -> tuple[fdl.Config, str]:
    """Returns the config before overrides, and its name."""
    from mtf import config as config_lib
    from mtf.config import provenance

    stray = [text for text in options.recipe if "=" in text.partition("(")[0]]
    if stray:
        raise UserError(f"{stray[0]} is not a recipe. To set a value, pass --set {stray[0]}")
    if len(options.recipe) > 1:
        raise UserError(f"Expected one recipe, got {', '.join(options.recipe)}.")
    if options.from_dir is not None:
        if options.recipe:
            raise UserError(
                f"--from {options.from_dir} already provides a config. Leave out "
                f"{options.recipe[0]}, or replace --from with --set model_dir={options.from_dir}."
            )
        from mtf.storage import as_path

        config = config_lib.load_config(options.from_dir)
        folder = as_path(options.from_dir)
        folder = folder.parent if folder.is_file() else folder
        if _has_run_dir(config):
            with provenance.set_by(f"--from {options.from_dir} (command line)"):
                config.model_dir = str(folder)
        return config, folder.resolve().name
    if not options.recipe:
        raise UserError(
            "The recipe is missing. Write python -m mtf.run RECIPE, for example python -m mtf.run "
            "recipes.quickstart. --list lists all recipes; --help shows the options."
        )
    return config_lib.resolve(options.recipe[0]), config_lib.recipe_name(options.recipe[0])


def _has_run_dir(config: fdl.Config) -> bool:
    return "model_dir" in config.__signature_info__.parameters


def _show(config: fdl.Config, name: str, options: argparse.Namespace) -> None:
    from mtf import config as config_lib

    if options.engine == "t5x" and (options.diff or options.graph):
        flag = "--diff" if options.diff else "--graph"
        raise UserError(f"{flag} shows mtf's config of a recipe; leave out --engine t5x.")
    if options.devices is not None and options.print != "sharding":
        raise UserError("--devices is for --print sharding only.")
    if options.help is not None:
        from mtf import explain

        print(explain.path_help(config, options.help), end="")
    if options.print == "sharding":
        print(_sharding(config, name, options.devices), end="")
    elif options.print and options.engine == "t5x":
        _show_t5x(config, name, options.print)
    elif options.print:
        texts = {
            "flat": config_lib.as_flat_text,
            "history": config_lib.as_history_text,
            "python": lambda config: config_lib.as_python(config, f"The config of {name}."),
            "json": config_lib.as_json,
        }
        print(texts[options.print](config), end="")
    if options.diff:
        from mtf.storage import as_path

        is_stored = as_path(options.diff).is_dir() or options.diff.endswith(".json")
        other = (config_lib.load_config if is_stored else config_lib.resolve)(options.diff)
        changes = config_lib.diff(other, config)
        print(f"# {options.diff} → {name}" + ("" if changes else ": the same"))
        for change in changes:
            print(change)
    if options.graph:
        config_lib.write_graph(config, Path(options.graph))
        print(f"Wrote {options.graph}.")


def _sharding(config: fdl.Config, name: str, num_devices: int | None) -> str:
    from mtf import config as config_lib

    if num_devices is not None and num_devices < 1:
        raise UserError(f"--devices is {num_devices}; expected at least 1.")
    job = config_lib.build(config)
    if not hasattr(job, "describe_sharding"):
        kind = type(job).__name__
        raise UserError(f"--print sharding shows training runs; {name} configures {kind} instead.")
    return str(job.describe_sharding(num_devices))


def _show_t5x(config: fdl.Config, name: str, kind: str) -> None:
    from mtf.t5x import run as t5x_run

    if kind == "history":
        raise UserError(
            "--print history shows where the values of a recipe were set; leave out --engine t5x."
        )
    texts = {
        "flat": t5x_run.as_flat_text,
        "python": lambda config: t5x_run.as_python(config, name),
        "json": t5x_run.as_json,
    }
    print(texts[kind](config), end="")


def _sweep(config: fdl.Config, name: str, options: argparse.Namespace) -> int:
    """Runs a sweep, each run as a command of its own, and returns the exit status."""
    from mtf.sweep.runs import Sweep, run_sweep

    refused = {
        "--from": options.from_dir,
        "--allow": options.allow,
        "--print, --diff, --graph and --help": _only_shows(options),
        "several processes": place_of(options) is not None,
    }
    if given := [what for what, is_given in refused.items() if is_given]:
        raise UserError(f"--sweep: not with {', '.join(given)}.")
    if not _has_run_dir(config):
        raise UserError(f"--sweep: {name} has no model_dir; expected a training run.")
    arguments = [options.recipe[0], "--engine", options.engine]
    for kind, text in options.overrides:
        arguments += [f"--{kind}", text]
    sweep = Sweep(
        options.sweep, options.sweep_mode, options.sweep_runs, options.sweep_metric, arguments
    )
    return run_sweep(config, name, sweep, dry_run=options.dry_run)


def _run(config: fdl.Config, name: str, options: argparse.Namespace, command: str) -> int:
    """Runs or describes a job, and returns the exit status."""
    from mtf import config as config_lib
    from mtf.run_end import exit_status_of
    from mtf.storage import as_path

    place = None if options.dry_run else place_of(options)
    is_new = _has_run_dir(config) and config.model_dir is None and not options.dry_run
    if is_new and place is None:
        config.model_dir = config_lib.new_run_dir(name)
    job = config_lib.build(config)
    for method in ("run", "describe"):
        if not callable(getattr(job, method, None)):
            raise UserError(
                f"{name} is the config of a {type(job).__name__}, which is not a job because it "
                f"has no {method}(). A recipe returns the config of a job, such as mtf.jobs.Train."
            )
    run_dir = config.model_dir if _has_run_dir(config) else None
    given, to_run, engine = config, config, options.engine
    if run_dir is not None and config_lib.check_resume(config, run_dir, options.allow, engine):
        config, to_run = config_lib.locate(config, run_dir)
        job = config_lib.build(to_run)
    if options.dry_run:
        _describe(job, to_run, engine)
        return 0

    def start() -> None:
        run = job.run if engine == "mtf" else _prepared_for_t5x(job, to_run)
        if run is not None and run_dir is None:
            run()
        elif run is not None:
            with config_lib.stored(job, config, command, f"The config of {name}."):
                run()

    if place is None:
        start()
        return 0 if run_dir is None else exit_status_of(as_path(run_dir))
    meeting = _meet(place, given, config_lib.new_run_dir(name) if is_new else None)
    if is_new:
        run_dir = config.model_dir = meeting.shared["model_dir"]
        job = config_lib.build(config)
    if run_dir is not None:
        _record_ends_of_others(run_dir)
    run_together(meeting, start)
    return 0 if run_dir is None else exit_status_of(as_path(run_dir))


def _record_ends_of_others(run_dir: str) -> None:
    """Records in the run directory if this process ends because another one did."""
    from mtf.cluster.meeting import before_end
    from mtf.run_end import RunEnd, write_end
    from mtf.storage import as_path

    before_end(lambda news: write_end(as_path(run_dir), RunEnd("failed", news)))


def _describe(job: Any, config: fdl.Config, engine: str) -> None:
    """Prints the description of a job, and raises UserError if the job cannot run."""
    from mtf.jobs.description import Description

    description = job.describe()
    if engine == "t5x":
        description = _with_t5x(description, config)
    print(description)
    if isinstance(description, Description):
        description.check()


def _meet(place: Place, config: fdl.Config, new_run_dir: str | None) -> Meeting:
    """Meets the other processes, which must have the same config and packages; starts JAX."""
    from mtf import config as config_lib
    from mtf.cluster.meeting import Meeting
    from mtf.environment import package_versions

    facts = {
        "the config": config_lib.as_flat_text(config).splitlines(),
        "the packages": [f"{name} {version}" for name, version in package_versions().items()],
    }
    meeting = Meeting(place, facts, {"model_dir": new_run_dir})
    import jax

    jax.distributed.initialize(place.jax_address, place.count, place.index)
    return meeting


def _with_t5x(description: Any, config: fdl.Config) -> Any:
    """Returns the description of a job with that of its model in T5X."""
    from mtf.t5x import run as t5x_run

    return description.with_rows(t5x_run.describe(config))


def _prepared_for_t5x(job: Any, config: fdl.Config) -> Callable[[], None] | None:
    """Returns a function that runs the job with T5X, or None if the run has reached its last step.

    Raises UserError if T5X cannot run the job.
    """
    from mtf.jobs.description import Description
    from mtf.t5x import run as t5x_run

    lowered = t5x_run.prepare(config)
    if lowered is None:
        return None
    description = job.describe()  # T5X would find the mistakes after it has written files.
    if isinstance(description, Description):
        description.check()
    return functools.partial(t5x_run.run, lowered)


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
