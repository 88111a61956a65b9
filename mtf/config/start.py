"""Starts jobs in their run directories, from the command line and from Python."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import fiddle as fdl

from mtf.base.errors import UserError
from mtf.base.run_end import failure_recorded
from mtf.base.writing import locked
from mtf.config import tree
from mtf.config.checks import build, find_problems, summarize
from mtf.config.paths import format_path
from mtf.config.run_dir import check_resume, new_run_dir, undone_on_refusal, write_run_dir
from mtf.storage import as_path

Job = TypeVar("Job")

# The run directory of the running job, whose config must not be stored again.
_entered: contextvars.ContextVar[str | None] = contextvars.ContextVar("entered", default=None)


def _identity(model_dir: str) -> str:
    return str(as_path(model_dir).absolute())


def check_types(job: Any) -> None:
    """Raises a single UserError that lists all values of wrong types in a job, at any depth."""
    if problems := find_problems(_config_of(job)):
        raise UserError(summarize(problems))


def as_checked(job: Job) -> Job:
    """Returns a copy of the job with values converted to their declared types (such as 1 to 1.0).

    Raises UserError if a value has a wrong type.
    """
    return build(_config_of(job))


def _check_named(config: fdl.Config) -> None:
    """Raises UserError if a config cannot refer to a value, such as an Optax optimizer, by name."""
    for leaf in tree.leaves(config):
        inside = leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)
        if any("<" in getattr(value, "__qualname__", "") for value in inside if callable(value)):
            path = format_path(leaf.path)
            raise UserError(
                f"{path}: this object does not record how it was made, so config.json could not "
                "describe it and the run could not be resumed. Put the call into a config, such "
                f"as fdl.Config(Train, {path.partition('.')[0]}=fdl.Config(optax.lion, …), …), and "
                "run the config with mtf.config.run(config)."
            )


def _config_of(job: Any) -> fdl.Config:
    return tree.complete(tree.from_instance(job))


@contextlib.contextmanager
def in_run_directory(job: Job, allow: Sequence[str] = ()) -> Iterator[Job]:
    """Checks a job, stores its config in its run directory, and yields the job to run.

    If `model_dir` is None, it is set to a new directory `runs/NAME-TIME`. Values are converted to
    their declared types. A job that was started from the command line is yielded unchanged, because
    its config is already stored. If a value has a wrong type or `check_resume` fails, a UserError
    is raised before anything is written.
    """
    model_dir = getattr(job, "model_dir", None)
    if model_dir is not None and _entered.get() == _identity(model_dir):
        yield job
        return
    name, config = type(job).__name__, _config_of(job)
    with _prepared(config, name, allow) as job:
        yield job


def run(config: fdl.Config, *, allow: Sequence[str] = ()) -> Any:
    """Stores a config in its run directory, runs the job, and returns the job's result.

    This is equivalent to `fdl.build(config).run(allow=…)`, but also works if the config contains
    function calls such as `fdl.Config(optax.lion, learning_rate=1e-4)`, which cannot be recovered
    from the built job.
    """
    if not isinstance(config, fdl.Config):
        name = getattr(config, "__name__", type(config).__name__)
        advice = "Pass the config that a recipe returns, such as recipes.quickstart()."
        if callable(config):
            advice = f"Call it: mtf.config.run({name}())"
        elif hasattr(config, "run") and not inspect.ismodule(config):
            advice = "A job runs itself: call its method run()."
        elif isinstance(config, str):
            advice = f"Write mtf.config.run(mtf.config.resolve({config!r}))"
        raise UserError(f"mtf.config.run takes an fdl.Config, not {name}. {advice}")
    config = tree.complete(config)
    if "model_dir" not in config.__signature_info__.parameters:
        return build(config).run()
    with _prepared(config, fdl.get_callable(config).__name__, allow) as job:
        return job.run()


def settled(job: Any, config: fdl.Config) -> Any:
    """Sets the values that a job finds by itself in its config, and returns the job with them."""
    values = job.settled_values() if hasattr(job, "settled_values") else {}
    for name, value in values.items():
        setattr(config, name, value)
    return build(config) if values else job


@contextlib.contextmanager
def _prepared(config: fdl.Config, name: str, allow: Sequence[str]) -> Iterator[Any]:
    """Checks a config, stores it in its run directory, and yields the job to run."""
    _check_named(config)
    job = build(config)
    if config.model_dir is None:
        config.model_dir = new_run_dir(name.lower())
        job = build(config)
    job = settled(job, config)
    check_resume(config, config.model_dir, allow)
    command = f"{name}.run() in {sys.argv[0] or 'an interactive session'}"
    with stored(job, config, command):
        yield job


@contextlib.contextmanager
def stored(job: Any, config: fdl.Config, command: str, title: str = "") -> Iterator[None]:
    """Locks a job's run directory and stores the config in it, unless the job has already finished.

    If the `with` body raises a UserError before it writes files, the directory is restored.
    """
    token = _entered.set(_identity(config.model_dir))
    jax = sys.modules.get("jax")
    is_first = jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0
    try:
        is_finished = hasattr(job, "is_finished") and job.is_finished()
        with contextlib.ExitStack() as stack:
            if not is_finished and is_first:
                stack.enter_context(locked(as_path(config.model_dir), "model_dir"))
                stack.enter_context(undone_on_refusal(config.model_dir))
                write_run_dir(config.model_dir, config, command, title)
                stack.enter_context(failure_recorded(as_path(config.model_dir)))
            yield
    finally:
        _entered.reset(token)
