"""Jobs that open a checkpoint: T5X needs its network and vocabulary in the config."""

from __future__ import annotations

import dataclasses
from typing import Any

import fiddle as fdl

from mtf.config import tree
from mtf.data.settings import TaskMixtureConfig
from mtf.decoding.settings import DecodingConfig
from mtf.errors import UserError
from mtf.jobs.infer import Infer
from mtf.partitioning.settings import PartitionerConfig
from mtf.t5x import adapters, unsupported


@dataclasses.dataclass(frozen=True)
class OpenedJob:
    """The values of an `Evaluate` or `Infer` job with those of its checkpoint.

    Attributes:
      model: the network of the checkpoint with the dtype of the job.
      data: the data, or the `Infer` job itself, with the vocabulary of the checkpoint.
      checkpoint: path of the checkpoint.
    """

    model: Any
    data: Any
    checkpoint: str
    dtype: str
    batch_size: int
    partitioner: PartitionerConfig
    output_dir: str | None
    decoding: DecodingConfig | None


def open_job(config: fdl.Config) -> fdl.Config[OpenedJob]:
    """Returns the values of a job and of its checkpoint; reads no parameters.

    Raises UserError if the checkpoint is not set, cannot be opened, or is in a layout that T5X
    cannot read.
    """
    job = fdl.build(config)
    opened = job._open()
    if not unsupported.is_of_t5x(opened.checkpoint):
        kind = "scanned" if opened.checkpoint.is_scanned else opened.checkpoint.layout
        raise UserError(f"checkpoint: {opened.checkpoint.path} ({kind}): {unsupported.OF_T5X}.")
    network = dataclasses.replace(opened.model.network, dtype=job.dtype)
    output_dir = job.output_dir
    if isinstance(job, Infer):
        job._check_input()
        add_eos = job.inputs_add_eos
        if add_eos is None and job.files is not None:
            add_eos = opened.inputs_add_eos
        data: Any = tree.from_instance(dataclasses.replace(job, inputs_add_eos=add_eos))
        data.vocabulary = tree.from_instance(opened.vocabulary)
        output_dir = str(job._output_dir(opened.checkpoint.path))
    else:
        data = dataclasses.replace(job.data, vocabulary=opened.vocabulary)
        if not isinstance(data, TaskMixtureConfig) and data.inputs_add_eos is None:
            known = opened.eos_is_known and opened.inputs_add_eos
            data = dataclasses.replace(data, inputs_add_eos=known)
    return tree.from_instance(
        OpenedJob(
            dataclasses.replace(opened.model, network=network),
            data,
            adapters.absolute_path(opened.checkpoint.path),
            job.dtype,
            job.batch_size,
            job.partitioner,
            output_dir,
            job.decoding,
        )
    )
