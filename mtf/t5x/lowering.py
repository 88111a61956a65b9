"""Lowers a job's config to a config of T5X's functions; rejects unsupported settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import fiddle as fdl

from mtf.base.errors import UserError
from mtf.config import find_problems, summarize, tree
from mtf.config.paths import format_path
from mtf.t5x import opening, symbols, unsupported
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
        config, model = opening.open_job(config)
    return symbols.JOBS[job](symbols.Settings(tree.freeze_defaults(config), model))


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
