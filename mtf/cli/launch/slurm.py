"""Submits a run to SLURM with an `sbatch` script that starts one process per task."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from mtf.base.errors import RunError, UserError
from mtf.base.progress import waiting
from mtf.base.writing import write_atomically
from mtf.config import recipe_name

# SLURM sends a signal this many seconds before the time limit, so that the run can save its state.
_SECONDS_TO_SAVE = 300
_QUEUED_AGAIN = """\
export MTF_STOPPED_FAILS=1  # A run that saved its state and stopped has exit status 143.

# Before the time limit, SLURM sends SIGUSR1 to this script. If the run stops, it is queued again.
stop_and_requeue() {
    scancel --signal=TERM "$SLURM_JOB_ID"
    wait $!
    status=$?
    [ $status -ne 143 ] || scontrol requeue "$SLURM_JOB_ID"
    exit $status
}
trap stop_and_requeue USR1

"""

_OPTIONS = (
    ("nodes", int, "N", "number of nodes"),
    ("tasks-per-node", int, "N", "processes per node (default: 1; on GPUs, one per GPU)"),
    ("gpus-per-node", int, "N", "GPUs per node"),
    ("cpus-per-task", int, "N", "CPU cores per process"),
    ("partition", str, "NAME", "partition"),
    ("account", str, "NAME", "account"),
    ("time", str, "[DAYS-]HH:MM:SS", "time limit; the run saves and stops 5 minutes earlier"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `mtf launch slurm`."""
    add = parser.add_argument
    for name, kind, metavar, text in _OPTIONS:
        add(f"--{name}", type=kind, metavar=metavar, help=text)
    add("--job-name", metavar="NAME", help="name of the job and its files (default: recipe name)")
    other = "another option of sbatch, such as constraint=h100; may be repeated"
    add("--sbatch", action="append", default=[], metavar="NAME[=VALUE]", help=other)
    folder = "directory for the script and the log (default: slurm)"
    add("--folder", default="slurm", metavar="DIR", help=folder)


def launch(options: argparse.Namespace) -> int:
    """Writes the script and submits it if the run's dry run succeeds, or only prints the script."""
    name = options.job_name or re.sub(r"[^A-Za-z0-9_-]", "_", recipe_name(options.command[0]))
    folder = Path(options.folder)
    text = script(options, name, folder)
    file = folder / f"{name}.sh"
    if options.dry_run:
        print(f"# {file}, submitted by: sbatch {shlex.quote(str(file))}\n{text}", end="")
        return 0
    if shutil.which("sbatch") is None:
        raise UserError(
            "sbatch was not found. Run this on a host that can submit SLURM jobs, or pass "
            "--dry-run to see the script."
        )
    checked = [sys.executable, "-m", "mtf.run", *options.command, "--dry-run"]
    with waiting(f"dry run of {options.command[0]}"):
        found = subprocess.run(checked, capture_output=True, text=True, check=False)
    if found.returncode:
        print(found.stderr[max(found.stderr.find("error: "), 0) :], end="", file=sys.stderr)
        return found.returncode
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text)
    done = subprocess.run(
        ["sbatch", "--parsable", str(file)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RunError(f"sbatch refused {file}: {done.stderr.strip() or done.stdout.strip()}")
    job = done.stdout.strip().partition(";")[0]
    log = folder / f"{name}-{job}.log"
    print(f"Submitted job {job}: {file}\n  log     {log}\n  state   squeue -j {job}")
    print(f"  stop    scancel --signal=TERM {job}    # saves a checkpoint")
    return 0


def script(options: argparse.Namespace, name: str, folder: Path) -> str:
    """Returns the script for sbatch.

    Raises:
      UserError: a number is below 1, or an option cannot be written as an #SBATCH line.
    """
    given = {"job-name": name, "output": str(folder / f"{name}-%j.log")}
    for option, kind, _, _ in _OPTIONS:
        value = getattr(options, option.replace("-", "_"))
        if kind is int and value is not None and value < 1:
            raise UserError(f"--{option} is {value}; expected at least 1.")
        if value is not None:
            given["ntasks-per-node" if option == "tasks-per-node" else option] = str(value)
    given.setdefault("nodes", "1")
    given.setdefault("ntasks-per-node", str(options.gpus_per_node or 1))
    # A job that is queued again resumes in the same run directory and appends to the same log.
    resumes = any(text.startswith("model_dir=") for text in options.command)
    if options.time is not None:
        given["signal"] = f"{'B:USR1' if resumes else 'TERM'}@{_SECONDS_TO_SAVE}"
    if resumes:
        given |= {"requeue": "", "open-mode": "append"}
    for text in options.sbatch:
        option, _, value = text.removeprefix("--").partition("=")
        if option == "export" and "=" in value:
            raise UserError(
                "--sbatch export: the script would show the values of variables. Set them in the "
                "environment, which sbatch passes on."
            )
        given[option] = value
    lines = []
    for option, value in given.items():
        if not re.fullmatch(r"[a-z][a-z-]*", option) or re.search(r"[\s#]", value):
            raise UserError(
                f"--sbatch {option}={value}: expected NAME or NAME=VALUE of an sbatch option, "
                "without spaces or #."
            )
        lines.append(f"#SBATCH --{option}" + f"={value}" * bool(value))
    command = shlex.join([sys.executable, "-m", "mtf.run", *options.command])
    srun = f"srun --kill-on-bad-exit=1 {command}"
    return (
        "#!/bin/bash\n"
        + "".join(f"{line}\n" for line in lines)
        + f"\ncd {shlex.quote(os.getcwd())}\n"
        # Since version 22.05, srun does not use the number that was given to sbatch.
        + 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"\n' * ("cpus-per-task" in given)
        + _QUEUED_AGAIN * resumes
        + "# Each task is a process of the run. SLURM's environment variables connect them.\n"
        + (f"{srun} &\nwait $!\n" if resumes else f"exec {srun}\n")
    )
