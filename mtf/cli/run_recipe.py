"""Shows, checks and runs a recipe (`python -m mtf.run`). Only the methods of a job import JAX."""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import fiddle as fdl

from mtf import config as config_lib
from mtf.base.environment import package_versions
from mtf.base.errors import UserError
from mtf.base.extras import import_extra
from mtf.base.processes.process_info import find_processes
from mtf.base.progress import waiting
from mtf.base.run_end import exit_status_of
from mtf.cli import explain, flags
from mtf.cli.command import exit_status
from mtf.cli.unknown_flags import argument_hint, refusals
from mtf.config import allowed, lookup, provenance
from mtf.jobs.description import Description
from mtf.storage import as_path

if TYPE_CHECKING:
    from mtf.base.processes.rendezvous import Rendezvous


def run(parser: argparse.ArgumentParser, options: argparse.Namespace, command: str) -> int:
    """Runs `python -m mtf.run` and returns its exit status; the run directory stores `command`."""
    lookup.import_from_here()
    config_lib.trust_runs(options.trust)
    if options.list or (options.help == "" and options.recipe):
        if options.unknown:
            raise UserError(config_lib.summarize(refusals(options, parser)))
        text = explain.listing() if options.list else explain.recipe_help(options.recipe[0])
        print(text, end="")
        return 0
    try:
        with waiting("opening the config", shown=sys.stderr.isatty()):
            config, name = _start(options)
    except UserError as error:
        refused = refusals(options, parser, failure=str(error))
        raise UserError(config_lib.summarize(refused)) from None
    config, problems = config_lib.try_overrides(config, options.overrides)
    allowed.name_modules(config)
    recipe = next(iter(options.recipe), "")
    problems = [f"{each}{argument_hint(each, recipe)}" for each in problems]
    problems += config_lib.find_problems(config)
    refused = refusals(options, parser, config)
    runs = options.dry_run or not flags.only_shows(options)
    if (problems or refused) and runs:
        problems += config_lib.find_refusals(config)
    elif problems:
        # A config can be shown before its required values are set.
        problems = [p for p in problems if not p.startswith("Missing required values")]
    if problems := problems + refused:
        raise UserError(config_lib.summarize(problems))
    if runs and not options.dry_run:
        gc.enable()  # `mtf.run` has disabled it.
    if options.sweep:
        return _sweep(config, name, options)
    _show(config, name, options)
    return _run(config, name, options, command) if runs else 0


def _start(options: argparse.Namespace) -> tuple[fdl.Config, str]:
    """Returns the config before overrides are applied, and its name."""
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
        config = config_lib.load_config(options.from_dir)
        allowed.check_fields(config, options.from_dir)
        folder = as_path(options.from_dir)
        folder = folder.parent if folder.is_file() else folder
        if _has_run_dir(config):
            with provenance.set_by(f"--from {options.from_dir} (command line)"):
                config.model_dir = str(folder)
        return config, folder.resolve().name
    if not options.recipe:
        raise UserError(
            "No recipe was given. Run python -m mtf.run RECIPE, for example python -m mtf.run "
            "recipes.quickstart. Use --list to list all recipes and --help to show the options."
        )
    fiddlers = [text for kind, text in options.overrides if kind == "apply"]
    config = config_lib.resolve(options.recipe[0], fiddlers)
    return config, config_lib.recipe_name(options.recipe[0])


def _has_run_dir(config: fdl.Config) -> bool:
    return "model_dir" in config.__signature_info__.parameters


def _show(config: fdl.Config, name: str, options: argparse.Namespace) -> None:
    if options.engine == "t5x" and options.diff:
        raise UserError("--diff shows mtf's config of a recipe; leave out --engine t5x.")
    if options.devices is not None and options.print != "sharding":
        raise UserError("--devices can be used only with --print sharding.")
    if options.help is not None:
        print(explain.path_help(config, options.help), end="")
    if options.print == "sharding":
        print(_sharding(config, name, options.devices), end="")
    elif options.print and options.engine == "t5x":
        _show_t5x(config, name, options.print)
    elif options.print:
        texts: dict[str, Callable[[fdl.Config], str]] = {
            "flat": functools.partial(config_lib.as_flat_text, defaults=False),
            "all": config_lib.as_flat_text,
            "history": config_lib.as_history_text,
            "python": lambda config: config_lib.as_python(config, f"The config of {name}."),
            "json": lambda config: f"{json.dumps(config_lib.flat_values(config), indent=2)}\n",
        }
        print(texts[options.print](config), end="")
    if options.diff:
        is_stored = as_path(options.diff).is_dir() or options.diff.endswith(".json")
        other = (config_lib.load_config if is_stored else config_lib.resolve)(options.diff)
        changes = config_lib.diff(other, config)
        print(f"# {options.diff} → {name}" + ("" if changes else ": the same"))
        for change in changes:
            print(change)


def _sharding(config: fdl.Config, name: str, num_devices: int | None) -> str:
    if num_devices is not None and num_devices < 1:
        raise UserError(f"--devices is {num_devices}; expected at least 1.")
    job = config_lib.build(config)
    if not hasattr(job, "describe_sharding"):
        kind = type(job).__name__
        raise UserError(f"--print sharding needs a training run, but {name} runs {kind}.")
    return str(job.describe_sharding(num_devices))


def _show_t5x(config: fdl.Config, name: str, kind: str) -> None:
    if kind in ("history", "json"):
        raise UserError(f"--print {kind} shows mtf's config of a recipe; leave out --engine t5x.")
    text = _t5x().as_python(config, name) if kind == "python" else _t5x().as_flat_text(config)
    print(text, end="")


def _sweep(config: fdl.Config, name: str, options: argparse.Namespace) -> int:
    """Runs a sweep in which each run is a new process, and returns the exit status."""
    refused = {
        "--from": options.from_dir,
        "--allow": options.allow,
        "--print, --diff and --help": flags.only_shows(options),
        "several processes": find_processes(os.environ, options) is not None,
    }
    if given := [what for what, is_given in refused.items() if is_given]:
        raise UserError(f"--sweep cannot be used with {', '.join(given)}.")
    if not _has_run_dir(config):
        raise UserError(f"--sweep: {name} has no model_dir; expected a training run.")
    arguments = [options.recipe[0], "--engine", options.engine]
    for run_dir in options.trust:
        arguments += ["--trust", run_dir]
    for kind, text in options.overrides:
        arguments += [f"--{kind}", text]
    import_extra("optuna", "--sweep", "optuna")
    from mtf.cli.sweep.runs import run_sweep

    return run_sweep(config, name, options, arguments)


def _run(config: fdl.Config, name: str, options: argparse.Namespace, command: str) -> int:
    """Runs or describes a job, and returns the exit status."""
    processes = None if options.dry_run else find_processes(os.environ, options)
    is_new = _has_run_dir(config) and config.model_dir is None and not options.dry_run
    if is_new and processes is None:
        config.model_dir = config_lib.new_run_dir(name)
    job = config_lib.build(config)
    for method in ("run", "describe"):
        if not callable(getattr(job, method, None)):
            raise UserError(
                f"{name} is the config of a {type(job).__name__}, which is not a job because it "
                f"has no {method}(). A recipe returns the config of a job, such as mtf.jobs.Train."
            )
    if processes is None:
        job = config_lib.settled(job, config)
    elif getattr(job, "auto_find_batch_size", False):
        raise UserError(
            "auto_find_batch_size needs a run of one process. Pass --set batch_size=N "
            "auto_find_batch_size=False"
        )
    run_dir = config.model_dir if _has_run_dir(config) else None
    engine = options.engine
    if run_dir is not None:
        config_lib.check_resume(config, run_dir, options.allow, engine)
    if options.dry_run:
        with waiting(f"checking {name}"):
            description = job.describe()
        if engine == "t5x":
            description.rows |= _t5x().describe(config)
        print(description)
        if isinstance(description, Description):
            description.check()
        return 0

    def start() -> None:
        run = job.run if engine == "mtf" else _prepared_for_t5x(job, config)
        if run is not None and run_dir is None:
            run()
        elif run is not None:
            with config_lib.stored(job, config, command, f"The config of {name}."):
                run()

    def start_with_others(rendezvous: Rendezvous) -> None:
        nonlocal run_dir, job
        versions = [f"{name} {version}" for name, version in package_versions().items()]
        lines = config_lib.as_flat_text(config).splitlines()
        rendezvous.compare({"the config": lines, "the packages": versions})
        if is_new:
            run_dir = config.model_dir = rendezvous.broadcast(
                "model_dir", config_lib.new_run_dir(name)
            )
            job = config_lib.build(config)
        start()

    if processes is None:
        start()
    else:
        from mtf.base.processes.rendezvous import Rendezvous  # Imports JAX.

        rendezvous = Rendezvous(processes)
        status_of = functools.partial(exit_status, only_shows=False)
        rendezvous.run(lambda: start_with_others(rendezvous), status_of)
    return 0 if run_dir is None else exit_status_of(as_path(run_dir))


def _prepared_for_t5x(job: Any, config: fdl.Config) -> Callable[[], None] | None:
    """Returns a function that runs the job with T5X, or None if the run has reached its last step.

    Raises UserError if T5X cannot run the job.
    """
    lowered = _t5x().prepare(config)
    if lowered is None:
        return None
    description = job.describe()  # T5X itself would report mistakes only after writing files.
    if isinstance(description, Description):
        description.check()
    return functools.partial(_t5x().run, lowered)


def _t5x() -> ModuleType:
    """Imports and returns the module that runs recipes with T5X."""
    from mtf.t5x import run  # Imports NumPy.

    return run
