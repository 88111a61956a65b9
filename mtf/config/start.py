"""Starting a job: one path, whether the command line or Python starts it."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import fiddle as fdl

from mtf.config import tree
from mtf.config.checks import build, check
from mtf.config.run_dir import check_resume, locate, new_run_dir, undone_on_refusal, write_run_dir
from mtf.writing import locked

Job = TypeVar("Job")

# The run directory that is being run in, so that a job which is started by the command line does
# not store its config a second time.
_entered: contextvars.ContextVar[str | None] = contextvars.ContextVar("entered", default=None)


def check_types(job: Any) -> None:
    """Raises a UserError with every value of a job, however deep, that has the wrong type."""
    check(_config_of(job))


def as_checked(job: Job) -> Job:
    """Returns the job with values in the form of their declared types: 1 as 1.0, lists as tuples.

    Raises:
      UserError: values of other types, all in one message.
    """
    return build(_config_of(job))


def _config_of(job: Any) -> fdl.Config:
    return tree.complete(tree.from_instance(job))


@contextlib.contextmanager
def in_run_directory(job: Job, allow: Sequence[str] = ()) -> Iterator[Job]:
    """Checks a job that Python made and stores its config in its run directory, `job.model_dir`.

    A job that the command line has started already is left as it is.

    Args:
      job: a dataclass with a field `model_dir`; None there makes a new `runs/NAME-TIME`.
      allow: paths whose values may differ from those that the run was started with.

    Yields:
      The job to run: with its run directory, and values in the form of their declared types.

    Raises:
      UserError: values of the wrong type, or what `check_resume` refuses. Nothing is written.
    """
    model_dir = getattr(job, "model_dir", None)
    if model_dir is not None and _entered.get() == os.path.abspath(model_dir):
        yield job
        return
    name = type(job).__name__
    config = _config_of(job)
    job = build(config)
    if config.model_dir is None:
        config.model_dir = new_run_dir(name.lower())
        job = build(config)
    if check_resume(config, config.model_dir, allow):
        config, to_run = locate(config, config.model_dir)
        job = build(to_run)
    command = f"{name}.run() in {sys.argv[0] or 'an interactive session'}"
    with stored(job, config, command):
        yield job


def _is_first_process() -> bool:
    """False in all but one of several processes that have joined one computation."""
    jax = sys.modules.get("jax")
    return jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0


@contextlib.contextmanager
def stored(job: Any, config: fdl.Config, command: str, title: str = "") -> Iterator[None]:
    """Holds a job's run directory, and writes its config there as `write_run_dir` does.

    The config is taken back if the block refuses the input. A job whose `is_finished()` is true
    has nothing to run, and nothing is written.
    """
    token = _entered.set(os.path.abspath(config.model_dir))
    try:
        is_finished = hasattr(job, "is_finished") and job.is_finished()
        with contextlib.ExitStack() as stack:
            if not is_finished and _is_first_process():
                stack.enter_context(locked(Path(config.model_dir), "model_dir"))
                stack.enter_context(undone_on_refusal(config.model_dir))
                write_run_dir(config.model_dir, config, command, title)
            yield
    finally:
        _entered.reset(token)
