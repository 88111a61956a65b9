"""Finds the smallest change with which a program fits a machine. Imports no JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mtf.errors import RunError, UserError
from mtf.partitioning.settings import PartitionerConfig
from mtf.plan.compiling import Plan, Request, compile_plan

_MOST_PARTITIONS = 32
_LARGER_TARGETS = 2


@dataclasses.dataclass(frozen=True)
class Change:
    """Settings, as `--set` takes them, and the plan with them, maybe on a larger target."""

    settings: tuple[str, ...]
    plan: Plan


def changed(request: Request, settings: Sequence[str]) -> Request:
    """Returns the request with settings, each PATH=VALUE."""
    from mtf import config as config_lib

    overrides = [config_lib.Override("set", text) for text in settings]
    config, problems = config_lib.try_overrides(request.config, overrides)
    if problems:
        raise UserError(config_lib.summarize(problems))
    return dataclasses.replace(request, config=config, hlo=None)


def smallest_change(request: Request, note: Callable[[str], None]) -> Change | None:
    """Returns the first change that fits, of those that change no result; None: none does.

    Changes of settings come before larger targets, and smaller ones before larger ones. `note` is
    called with the description of each before it is compiled.
    """
    from mtf import config as config_lib

    job = config_lib.build(request.config)
    for settings in _candidates(job, request.target.num_devices):
        plan = _try(changed(request, settings), " ".join(settings), note)
        if plan is not None and plan.fits:
            return Change(settings, plan)
    for target in request.target.larger()[:_LARGER_TARGETS]:
        larger = dataclasses.replace(request, target=target)
        sizes = _fsdp_sizes(job.partitioner, target.num_devices)
        for settings in ((), *((f"partitioner.fsdp={n}",) for n in sizes[-1:])):
            plan = _try(changed(larger, settings), " ".join((str(target), *settings)), note)
            if plan is not None and plan.fits:
                return Change(settings, plan)
    return None


def trains(request: Request) -> bool:
    """Returns whether the program is a training step."""
    from mtf import config as config_lib
    from mtf.jobs import Train

    return request.program in (None, "train") and isinstance(
        config_lib.build(request.config), Train
    )


def _try(request: Request, name: str, note: Callable[[str], None]) -> Plan | None:
    from mtf import config as config_lib

    try:
        config_lib.build(request.config).partitioner.mesh_shape(request.target.num_devices)
        note(name)
        return compile_plan(request)
    except (UserError, RunError):  # Such as a batch that the mesh does not divide.
        return None


def _candidates(job: Any, num_devices: int) -> Iterator[tuple[str, ...]]:
    """Yields settings to try, in order."""
    partitioner: PartitionerConfig = job.partitioner
    model = partitioner.min_devices // partitioner.fsdp
    fewer, remat = _smaller_batches(job, max(num_devices // model, 1))
    wider = [f"partitioner.fsdp={n}" for n in _fsdp_sizes(partitioner, num_devices)]
    split = _more_partitions(partitioner, num_devices)
    yield from ((setting,) for setting in (*remat, *fewer, *wider, *split))
    # All at once: the widest, with each smaller batch.
    for widest in wider[-1:] or split[-1:]:
        yield from ((widest, *remat, smaller) for smaller in fewer)


def _smaller_batches(job: Any, shards: int) -> tuple[list[str], list[str]]:
    """Returns settings that make the batch of a program smaller, and those that recompute more.

    If the number of microbatches is too large for the `shards` of a batch, fewer are proposed.
    """
    from mtf.jobs import Train

    if not isinstance(job, Train):
        size = job.batch_size
        return [f"batch_size={size // n}" for n in (2, 4, 8) if size % n == 0], []
    now = job.trainer.num_microbatches
    numbers = [now * 2, now * 4, now * 8]
    if job.batch_size % (now * shards):
        numbers = [now // 2, now // 4, now // 8]
    fewer = [
        f"trainer.num_microbatches={number}"
        for number in numbers
        if number and job.batch_size % (number * shards) == 0
    ]
    full = "model.network.remat_policy=full"
    return fewer, [full] if job.model.network.remat_policy != "full" else []


def _fsdp_sizes(partitioner: PartitionerConfig, num_devices: int) -> list[int]:
    """Returns larger powers of two of the fsdp axis, up to all that the model axis leaves."""
    most = num_devices // (partitioner.min_devices // partitioner.fsdp)
    sizes = (2**power for power in range(1, most.bit_length()))
    return [size for size in sizes if size > partitioner.fsdp and most % size == 0]


def _more_partitions(partitioner: PartitionerConfig, num_devices: int) -> list[str]:
    if partitioner.model_parallel_submesh is not None:
        return []
    now = partitioner.num_partitions or 1
    sizes = (now * 2, now * 4)
    return [
        f"partitioner.num_partitions={size}"
        for size in sizes
        if size <= _MOST_PARTITIONS and num_devices % (size * partitioner.fsdp) == 0
    ]
