"""Reads from a job's checkpoint the network and the vocabulary that T5X needs in its config."""

from __future__ import annotations

import dataclasses
from typing import Any

import fiddle as fdl

from mtf.base.errors import UserError
from mtf.config import tree
from mtf.data.settings import TaskMixtureConfig
from mtf.jobs import Infer
from mtf.t5x import adapters, unsupported


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
