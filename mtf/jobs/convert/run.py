"""Runs and describes a conversion job."""

from __future__ import annotations

import dataclasses
import functools
import sys

from conversion import huggingface
from conversion.formats import list_checkpoints
from mtf.base.errors import RunError, UserError, conversion_as_user_errors
from mtf.config.run_dir import write_job
from mtf.jobs.convert.export import Plan, VerificationError, export
from mtf.jobs.convert.settings import Convert
from mtf.jobs.description import Description
from mtf.storage import UNFINISHED, AnyPath, as_path


@conversion_as_user_errors()
def run(job: Convert) -> tuple[AnyPath, ...]:
    """Runs a job whose field types have been checked, and returns the directories written.

    Raises RunError if verification finds a difference, a checkpoint of several cannot be converted,
    or the disk is full.
    """
    return _run_all(job) if job.all else (_run_one(job),)


def _run_all(job: Convert) -> tuple[AnyPath, ...]:
    """Converts each checkpoint that has not been converted; if one fails, the others still run."""
    failed: list[str] = []
    each, output = _singles(job), as_path(job.output)
    for number, one in enumerate(each, start=1):
        name = as_path(one.output).name
        print(f"[{number}/{len(each)}] {name}", flush=True)
        try:
            if _is_converted(one):
                print(f"Skipped {one.output}, which already exists")
            else:
                _run_one(one)
        except (UserError, VerificationError) as error:
            failed.append(name)
            print(f"error: {error}", file=sys.stderr)
    if output.is_dir():
        write_job(output, job)
    print(f"{len(each) - len(failed)} of {len(each)} checkpoints are in {output}")
    if failed:
        raise RunError(f"{len(failed)} failed: {', '.join(failed)}")
    return tuple(as_path(one.output) for one in each)


def _singles(job: Convert) -> list[Convert]:
    """Returns a job for each `checkpoint_STEP`; raises UserError if there is none."""
    found = list_checkpoints(job.checkpoint) if as_path(job.checkpoint).is_dir() else []
    if not found:
        raise UserError(
            f"--all: {job.checkpoint} has no directories named checkpoint_STEP. Pass a run "
            "directory or a directory of checkpoints, or leave out --all."
        )
    outputs = [(str(path), str(as_path(job.output) / path.name)) for _, path in found]
    return [dataclasses.replace(job, checkpoint=a, output=b, all=False) for a, b in outputs]


def _is_converted(job: Convert) -> bool:
    output = as_path(job.output)
    return output.is_dir() and any(output.iterdir()) and not (output / UNFINISHED).is_file()


@conversion_as_user_errors()
def _run_one(job: Convert) -> AnyPath:
    """Converts one checkpoint; returns the directory of the model or checkpoint."""
    huggingface.check_output(as_path(job.output))
    steps = export(job)
    plan = next(steps)
    print(*plan.notes, sep="\n")
    next(steps, None)
    return plan.written


def describe(job: Convert) -> Description:
    """Returns what would be read and written, and the results of checks; writes nothing."""
    found = Description({"to": job.title})
    if job.all:
        singles = found.add("checkpoints", lambda: _singles(job), lambda each: str(len(each)))
        for one in singles or ():
            if not _is_converted(one):
                found.add(as_path(one.output).name, functools.partial(next, export(one)), _summary)
    else:
        found.add("output", lambda: huggingface.check_output(as_path(job.output)))
        plan = found.add("checkpoint", lambda: next(export(job)), _summary)
        for number, note in enumerate(plan.notes if plan is not None else (), start=1):
            found.rows[f"note {number}"] = note
    return found


def _summary(plan: Plan) -> str:
    return f"{plan.source.title} → {plan.written}: {plan.content}"
