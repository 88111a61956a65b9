"""Lowers a job's config to a config of T5X's functions; rejects unsupported settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import fiddle as fdl

from mtf.base.errors import UserError
from mtf.config import find_problems, summarize, tree
from mtf.config.paths import format_path
from mtf.data.settings import TaskMixtureConfig
from mtf.jobs import Infer
from mtf.t5x import adapters, symbols, unsupported
from mtf.t5x.unsupported import type_name


def lower(config: Any) -> fdl.Config:
    """Returns a config of `t5x.train.train`, `t5x.eval.evaluate` or `t5x.infer.infer` for a job.

    Both `fdl.build(fdl.cast(fdl.Partial, lowered))()` and `fdl.build(lowered)` run the job.

    Args:
      config: a job or its config.

    Raises UserError if T5X is not installed or cannot run the job. In the latter case, the message
    lists all settings that T5X does not support.
    """
    if dataclasses.is_dataclass(config):
        config = tree.from_instance(config)
    if problems := find_problems(config):
        raise UserError(summarize(problems))
    check(config)
    from mtf.t5x import compatibility  # noqa: F401  # must precede the import of T5X

    job = type_name(config)
    model = None
    if job != "Train":
        config, model = open_job(config)
    return symbols.JOBS[job](symbols.Settings(tree.freeze_defaults(config), model))


def open_job(config: fdl.Config) -> tuple[fdl.Config, fdl.Config]:
    """Completes an `Evaluate` or `Infer` job from its checkpoint; does not read parameters.

    Returns the job's config, to which the checkpoint's vocabulary and absolute path are added, and
    the config of the checkpoint's model, with the job's dtype.

    Raises UserError if the checkpoint is not set, cannot be opened, or has a layout that T5X cannot
    read.
    """
    job = fdl.build(config)
    # Imported here because these modules import JAX.
    from mtf.jobs.evaluate import run as evaluation
    from mtf.jobs.infer import run as inference

    opened = (inference if isinstance(job, Infer) else evaluation).open_checkpoint(job)
    if not unsupported.is_of_t5x(opened.checkpoint):
        kind = "scanned" if opened.checkpoint.is_scanned else opened.checkpoint.layout
        raise UserError(f"T5X cannot read {opened.checkpoint.path} ({kind}). {unsupported.OF_T5X}.")
    network = dataclasses.replace(opened.model.network, dtype=job.dtype)
    path = adapters.absolute_path(opened.checkpoint.path)
    if isinstance(job, Infer):
        job.check_input()
        add_eos = job.inputs_add_eos
        if add_eos is None and job.files is not None:
            add_eos = opened.inputs_add_eos
        output_dir = str(inference.output_dir_of(job, opened.checkpoint.path))
        changes: dict[str, Any] = {"inputs_add_eos": add_eos, "output_dir": output_dir}
    else:
        data = dataclasses.replace(job.data, vocabulary=opened.vocabulary)
        if not isinstance(data, TaskMixtureConfig) and data.inputs_add_eos is None:
            known = opened.eos_is_known and opened.inputs_add_eos
            data = dataclasses.replace(data, inputs_add_eos=known)
        changes = {"data": data}
    config = tree.from_instance(dataclasses.replace(job, checkpoint=path, **changes))
    if isinstance(job, Infer):
        config.vocabulary = tree.from_instance(opened.vocabulary)
    return config, tree.from_instance(dataclasses.replace(opened.model, network=network))


def check(config: fdl.Config) -> None:
    """Raises a UserError that lists the unsupported settings, if any; does not import T5X."""
    job = type_name(config)
    if job not in symbols.JOBS:
        raise UserError(f"--engine t5x runs only the jobs {', '.join(symbols.JOBS)}, not {job}.")
    config = tree.freeze_defaults(config)
    _refuse(unsupported.find_custom_parts(config))
    problems = list(unsupported.find_refusals(config))
    settings = symbols.Settings(config, imports=False)
    symbols.JOBS[job](settings)
    refused = {refusal.path for refusal in unsupported.REFUSALS[job]}
    used = {tuple(path.split(".")) for path in settings.used | refused | unsupported.UNUSED[job]}
    for leaf in tree.leaves(config):
        prefixes = (leaf.path[:length] for length in range(len(leaf.path) + 1))
        if not leaf.is_component and not used & {*prefixes} and leaf.value is not None:
            problems.append(f"{format_path(leaf.path)} = {leaf.value!r}: T5X has no such setting.")
    _refuse(problems)


def _refuse(problems: Iterable[str]) -> None:
    if lines := "".join(f"\n  {problem}" for problem in problems):
        raise UserError(f"T5X does not support these settings of the recipe:{lines}")
