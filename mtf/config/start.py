"""Starts a job in its run directory, whether from the command line or from Python."""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import fiddle as fdl

from mtf.config import tree
from mtf.config.checks import build, find_problems, summarize
from mtf.config.paths import format_path
from mtf.config.run_dir import check_resume, locate, new_run_dir, undone_on_refusal, write_run_dir
from mtf.errors import UserError
from mtf.run_end import failure_recorded
from mtf.storage import as_path
from mtf.writing import locked

Job = TypeVar("Job")

# The current run directory; a job that the command line started must not store its config again.
_entered: contextvars.ContextVar[str | None] = contextvars.ContextVar("entered", default=None)


def _identity(model_dir: str) -> str:
    return str(as_path(model_dir).absolute())


def check_types(job: Any) -> None:
    """Raises a UserError with all values of a job, at any depth, that have a wrong type."""
    if problems := find_problems(_config_of(job)):
        raise UserError(summarize(problems))


def as_checked(job: Job) -> Job:
    """Returns the job with values converted to their types (1 → 1.0); UserError if they cannot."""
    return build(_config_of(job))


def _check_named(config: fdl.Config) -> None:
    """Refuses a job with an object, such as an optimizer of optax, whose maker is not known."""
    for leaf in tree.leaves(config):
        inside = leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)
        if any("<" in getattr(value, "__qualname__", "") for value in inside if callable(value)):
            path = format_path(leaf.path)
            raise UserError(
                f"{path}: this object does not say how it was made, so config.json could not "
                "describe it and the run could not be resumed. Put the call into a config, such "
                f"as fdl.Config(Train, {path.partition('.')[0]}=fdl.Config(optax.lion, …), …), and "
                "run the config with mtf.config.run(config)."
            )


def _config_of(job: Any) -> fdl.Config:
    return tree.complete(tree.from_instance(job))


@contextlib.contextmanager
def in_run_directory(job: Job, allow: Sequence[str] = ()) -> Iterator[Job]:
    """Checks a job, stores its config in its run directory, and yields the job to run.

    A `model_dir` of None becomes a new directory `runs/NAME-TIME`; values are converted to their
    declared types. A job that the command line started is yielded unchanged. A UserError for
    wrong types, or from `check_resume` with `allow`, is raised before anything is written.
    """
    model_dir = getattr(job, "model_dir", None)
    if model_dir is not None and _entered.get() == _identity(model_dir):
        yield job
        return
    name, config = type(job).__name__, _config_of(job)
    _check_named(config)
    with _prepared(config, name, allow) as job:
        yield job


def run(config: fdl.Config, *, allow: Sequence[str] = ()) -> Any:
    """Runs the job of a config, and stores the config in the run directory.

    It does what `fdl.build(config).run(allow=…)` does, also if the config has calls whose results
    do not say how they were made, such as `fdl.Config(optax.lion, learning_rate=1e-4)`. Returns
    what the job returns, and raises the same errors.
    """
    config = tree.complete(config)
    if "model_dir" not in config.__signature_info__.parameters:
        return build(config).run()
    with _prepared(config, fdl.get_callable(config).__name__, allow) as job:
        return job.run()


@contextlib.contextmanager
def _prepared(config: fdl.Config, name: str, allow: Sequence[str]) -> Iterator[Any]:
    """Checks a config, stores it in its run directory, and yields the job to run."""
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
    """Returns whether this is process 0 of JAX's processes, or the only one."""
    jax = sys.modules.get("jax")
    return jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0


@contextlib.contextmanager
def stored(job: Any, config: fdl.Config, command: str, title: str = "") -> Iterator[None]:
    """Locks a job's run directory, and stores the config there unless the job is finished.

    The files are restored if the block raises a UserError.
    """
    token = _entered.set(_identity(config.model_dir))
    try:
        is_finished = hasattr(job, "is_finished") and job.is_finished()
        with contextlib.ExitStack() as stack:
            if not is_finished and _is_first_process():
                stack.enter_context(locked(as_path(config.model_dir), "model_dir"))
                stack.enter_context(undone_on_refusal(config.model_dir))
                write_run_dir(config.model_dir, config, command, title)
                stack.enter_context(failure_recorded(as_path(config.model_dir)))
            yield
    finally:
        _entered.reset(token)
