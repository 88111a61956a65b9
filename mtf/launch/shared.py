"""Options and checks that several targets of mtf.launch share."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
from collections.abc import Sequence

from mtf.errors import UserError
from mtf.launch.bundle import Job, find_code
from mtf.launch.pinned import pinned_requirements

# What mtf needs to read addresses.
_STORES = {"gs://": "gcs", "s3://": "s3", "https://": "https"}

ACTIONS = ("start", "status", "logs", "stop")


def add_action(parser: argparse.ArgumentParser) -> None:
    """Adds what to do, and the form of the command line."""
    parser.usage = f"{parser.prog} [{'|'.join(ACTIONS)}] [options] -- RECIPE …"
    text = (
        "start a run (default); show whether its processes run; show their output; or stop them, "
        "which saves a checkpoint. Only start needs a recipe"
    )
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="start", help=text)


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of targets that copy the code to hosts."""
    add = parser.add_argument
    variable = "an environment variable of the processes; may be repeated"
    add("--env", action="append", default=[], metavar="NAME=VALUE", help=variable)
    extras = "extras of mtf to install, such as cuda,gcs (default: those installed here)"
    add("--extras", default="", metavar="A,B", help=extras)
    add("--detach", action="store_true", help="return when the processes have started")


def make_job(
    options: argparse.Namespace, name: str, python: str | None, place: str, **variables: str
) -> Job:
    """Returns the run of the options; python None installs the packages of this environment."""
    extras = {extra for extra in options.extras.split(",") if extra}
    extras |= {extra for scheme, extra in _STORES.items() if scheme in " ".join(options.command)}
    if place == "tpu":
        extras.add("tpu")
    return Job(
        name=name,
        arguments=options.command,
        python=python,
        variables={**find_variables(options.env), **variables},
        place=place,
        requirements=pinned_requirements(extras) if python is None else None,
        code=None if options.no_copy else find_code(),
    )


def again(options: argparse.Namespace, action: str) -> str:
    """Returns the command line that does something with the same run."""
    given = [text for text in options.given if text not in ACTIONS[1:]]
    start = given[:1] + ([] if action == "start" else [action]) + given[1:]
    command = ["--", *options.command] if action == "start" else []
    return shlex.join(["python", "-m", "mtf.launch", *start, *command])


def show_commands(options: argparse.Namespace) -> None:
    """Prints how to look at a run and stop it."""
    for action, comment in (("status", ""), ("logs", ""), ("stop", "    # saves a checkpoint")):
        print(f"  {action:<7} {again(options, action)}{comment}")


def name_of(recipe: str) -> str:
    """Returns a name for files from a recipe such as my.py:recipe(size=1)."""
    short = recipe.partition("(")[0].rpartition(":")[2].rpartition(".")[2]
    return re.sub(r"[^A-Za-z0-9_-]", "_", short)


def find_variables(given: Sequence[str]) -> dict[str, str]:
    """Returns the environment variables of --env.

    Raises:
      UserError: one is not NAME=VALUE.
    """
    variables = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"--env {text}: expected NAME=VALUE, such as HF_HOME=/data/hub.")
        variables[name] = value
    return variables


def check_name(name: str, option: str) -> str:
    """Returns a name of a run, which becomes a directory and a session of tmux."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name, re.ASCII) or name in ACTIONS:
        raise UserError(
            f"{option} {name}: expected letters, digits, - and _, and none of {', '.join(ACTIONS)}."
        )
    return name


_SETTINGS = ("model_dir", "output_dir")


def check_run_dir(arguments: Sequence[str], why: str) -> None:
    """Raises a UserError unless the run directory is an address or an absolute path."""
    found = [text.partition("=")[2] for text in arguments if text.partition("=")[0] in _SETTINGS]
    for option, value in itertools.pairwise(arguments):
        if option == "--from":
            found.append(value)
    found += [text.partition("=")[2] for text in arguments if text.startswith("--from=")]
    if not found:
        raise UserError(
            f"The run directory is missing. {why} Pass --set model_dir=gs://BUCKET/DIRECTORY, or a "
            "path on a file system that all hosts have."
        )
    for value in found:
        if "://" not in value and not value.startswith("/"):
            raise UserError(
                f"The run directory {value} is a relative path. {why} Pass an address such as "
                "gs://BUCKET/DIRECTORY, or an absolute path on a file system that all hosts have."
            )
