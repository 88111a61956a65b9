"""Runs and describes a conversion job."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from conversion import huggingface
from conversion.checkpoint import list_checkpoints
from mtf.base import signals
from mtf.base.errors import RunError, UserError, conversion_as_user_errors
from mtf.base.writing import new_directory
from mtf.config.run_dir import write_job
from mtf.jobs.convert import hub
from mtf.jobs.convert.export import prepare
from mtf.jobs.convert.formats import FORMATS
from mtf.jobs.convert.settings import Convert
from mtf.jobs.description import Checks, Description
from mtf.jobs.results import ConvertResult
from mtf.storage import UNFINISHED, AnyPath, as_path, file_sizes, is_remote


class _VerificationError(RunError):
    """Raised if an exported model fails verification."""


def run(job: Convert) -> ConvertResult:
    """Runs a job whose field types have been checked; see `Convert.run`."""
    return _run_all(job) if job.all else ConvertResult((_run_one(job, job),))


def _run_all(job: Convert) -> ConvertResult:
    """Converts each checkpoint that has not been converted; if one fails, the others still run."""
    failed: list[str] = []
    each = list(_singles(job))
    for number, one in enumerate(each, start=1):
        name = as_path(one.output).name
        print(f"[{number}/{len(each)}] {name}", flush=True)
        try:
            if _is_converted(one):
                print(f"Skipped {one.output}, which already exists")
            else:
                _run_one(one, None)
        except (UserError, _VerificationError) as error:
            failed.append(name)
            print(f"error: {error}", file=sys.stderr)
    output = as_path(job.output)
    if output.is_dir():
        write_job(output, job)
    print(f"{len(each) - len(failed)} of {len(each)} checkpoints are in {job.output}")
    if failed:
        raise RunError(f"{len(failed)} failed: {', '.join(failed)}")
    return ConvertResult(tuple(as_path(one.output) for one in each))


def _singles(job: Convert) -> Iterator[Convert]:
    """Yields a job for each `checkpoint_STEP`; raises UserError if there is none."""
    found = list_checkpoints(job.checkpoint) if as_path(job.checkpoint).is_dir() else []
    if not found:
        raise UserError(
            f"--all: {job.checkpoint} has no directories named checkpoint_STEP. Pass a run "
            "directory or a directory of checkpoints, or leave out --all."
        )
    for _, path in found:
        output = str(as_path(job.output) / path.name)
        yield dataclasses.replace(job, checkpoint=str(path), output=output, all=False)


def _is_converted(job: Convert) -> bool:
    output = as_path(job.output)
    return output.is_dir() and any(output.iterdir()) and not (output / UNFINISHED).is_file()


@conversion_as_user_errors()
def _run_one(job: Convert, stored: Convert | None) -> AnyPath:
    """Converts one checkpoint; returns the directory of the model or checkpoint.

    The config of `stored`, unless it is None, is written beside the files.
    """
    output, export = _check_output(job), prepare(job)
    print(*export.notes, sep="\n")
    directly = is_remote(output) and job.to == "hf" and export.compared is None
    if is_remote(output) and job.to == "hf":
        signals.hint("run the same command again to replace the files in OUT_DIR")
    # Other writers, and verification, need local files.
    with nullcontext(output) if directly else new_directory(output) as directory:
        export.write(directory)
        if export.compared is not None:
            _verify(*export.compared(directory))
        if stored is not None:
            write_job(directory, stored)
    files = file_sizes(export.written)
    size = f"{sum(files.values()):,} bytes in {len(files)} files"
    print(f"Wrote {export.written} ({FORMATS[job.to]}): {export.content}, {size}")
    print(*export.usage, sep="\n")
    if job.push_to_hub is not None:
        hub.push(output, job.push_to_hub)
    return export.written


@conversion_as_user_errors()
def _check_output(job: Convert) -> AnyPath:
    """Returns the output directory; raises UserError if nothing can be written to it."""
    output = as_path(job.output)
    if job.push_to_hub is not None:
        hub.check_repo(job.push_to_hub, output)
    huggingface.check_output(output)
    return output


def _verify(model: huggingface.Export, directory: AnyPath) -> None:
    """Compares a checkpoint with a Hugging Face model; raises an error if they differ."""
    from mtf.jobs.convert.verification import compare  # This imports JAX and PyTorch.

    passed, report = compare(model, Path(str(directory)))
    print(report)
    if not passed:
        raise _VerificationError("The logits differ, so nothing was written.")


def describe(job: Convert) -> Description:
    """Returns what would be read and written, and the results of checks; see `Convert.describe`."""
    checks = Checks()
    if job.all:
        found = checks.add("checkpoints", lambda: [*_singles(job)], lambda s: str(len(s))) or []
    else:
        checks.add("output", functools.partial(_check_output, job))
        found = [job]
    for one in found:
        name = as_path(one.output).name if job.all else "checkpoint"
        if job.all and _is_converted(one):
            checks.rows[name] = "exists already and is skipped"
            continue
        export = checks.add(name, functools.partial(prepare, one), lambda e: e.source.title)
        if export is not None and not job.all:
            checks.rows |= {
                "content": export.content,
                "verification": "no" if export.compared is None else "logits in JAX and PyTorch",
                "notes": "; ".join(n for n in export.notes if not n.startswith("Reading ")),
            }
    rows = {"to": f"{job.to} ({FORMATS[job.to]})"}
    return Description({**rows, **checks.rows}, tuple(checks.problems))
