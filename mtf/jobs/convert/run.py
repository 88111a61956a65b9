"""Runs and describes a conversion job."""

from __future__ import annotations

from conversion import huggingface
from mtf.base.errors import conversion_as_user_errors
from mtf.jobs.convert.export import Plan, export
from mtf.jobs.convert.settings import Convert
from mtf.jobs.description import Description
from mtf.storage import AnyPath, as_path


@conversion_as_user_errors()
def run(job: Convert) -> AnyPath:
    """Runs a job whose field types have been checked.

    Returns the directory of the model or checkpoint. Raises RunError if verification finds a
    difference or the disk is full.
    """
    huggingface.check_output(as_path(job.output))
    steps = export(job)
    plan = next(steps)
    print(*plan.notes, sep="\n")
    next(steps, None)
    return plan.written


def describe(job: Convert) -> Description:
    """Returns what would be read and written, and the results of checks; writes nothing."""
    found = Description({"to": job.title})
    found.add("output", lambda: huggingface.check_output(as_path(job.output)))
    plan = found.add("checkpoint", lambda: next(export(job)), _summary)
    for number, note in enumerate(plan.notes if plan is not None else (), start=1):
        found.rows[f"note {number}"] = note
    return found


def _summary(plan: Plan) -> str:
    return f"{plan.source.title} → {plan.written}: {plan.content}"
