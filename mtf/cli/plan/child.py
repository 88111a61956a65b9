"""Compiles a step and prints its memory and work (`python -m mtf.cli.plan.child < REQUEST`).

A separate process is needed because the compiler may abort, and because a process cannot change its
JAX devices. The request and the answer are JSON; the answer is the last line of stdout. The process
ends when its parent ends.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Mapping
from typing import Any

import jax
from jax.experimental import topologies

from mtf import config as config_lib
from mtf.base import signals
from mtf.base.errors import UserError
from mtf.cli.plan import work
from mtf.cli.plan.hlo import parse
from mtf.cli.plan.targets import Target
from mtf.data.packing import to_batch
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner
from mtf.training.flops import train_step_flops
from mtf.training.sizes import least_bytes
from mtf.training.trainer import Trainer

# The part of a device's memory that a program may need by estimate.
_USABLE = 0.9


def main() -> None:
    """Reads a request from stdin and prints the answer."""
    signals.end_with_launcher()
    request = json.load(sys.stdin)
    try:
        answer = _answer(**request)
    except UserError as error:
        answer = {"refused": str(getattr(error, "proxy_base_exception", error))}
    except Exception as error:
        answer = {"failed": f"{type(error).__name__}: {error}"}
        if "RESOURCE_EXHAUSTED" in str(error):  # The program does not fit into device memory.
            answer = {"needed_bytes": None, "message": str(error).splitlines()[0]}
    print(json.dumps(answer))


def _answer(target: str, config: str) -> dict[str, Any]:
    machine: Target = pickle.loads(bytes.fromhex(target))
    job = config_lib.build(config_lib.load_json(config, "the request", trust=True))
    lengths, batch_size = job.data.task_feature_lengths, job.batch_size
    inputs, targets = lengths["inputs"], lengths["targets"]
    microbatches = job.trainer.num_microbatches
    partitioner = PjitPartitioner.create(job.partitioner, _devices_of(machine))
    partitioner.check_batch_size(batch_size, microbatches)
    trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer, job.random_seed)
    sizes = least_bytes(trainer, lengths, batch_size)
    parts = {name: sizes[name] for name in ("parameters", "optimizer state", "average")}
    # With several microbatches, a device stores the summed gradients and those of one microbatch.
    parts["gradients"] = sizes["gradients"] * (1 if microbatches == 1 else 2)
    least = sum(parts.values()) - parts["gradients"] // 2
    if least > machine.memory:
        return {"needed_bytes": least}
    batch = jax.eval_shape(lambda: to_batch([], lengths, batch_size, job.data.pack))
    compiled = trainer.lower(trainer.state_shapes, batch).compile()
    mesh = partitioner.mesh
    # The chips of a TPU slice have direct links across hosts, so the slice counts as one host.
    is_gpu = machine.platform == "cuda"
    host_of = [device.process_index if is_gpu else 0 for device in mesh.devices.flat]
    tokens = batch_size * (inputs + targets)
    flops = train_step_flops(job.model.network, batch_size, inputs, targets)
    start = job.checkpoint.restore.step if job.checkpoint.restore is not None else 0
    steps = job.train_steps - (start or 0)
    found = {
        **{"formula_flops": flops, "tokens": tokens, "steps": steps, "mesh": dict(mesh.shape)},
        **_memory(memory.peak_bytes(compiled, machine.platform), parts),
        **work.measure(parse(compiled.as_text()), mesh.shape, host_of, machine.chip),
    }
    with partitioner.in_force():
        found["remat_policy"] = trainer.remat_policy(batch)
        needed = _with_minimal(trainer, batch, found["needed_bytes"], machine.memory)
        found["with_minimal_remat"] = needed
    if machine.chip is not None:
        times, at_least = found["times"], found["times"]["at_least"]
        peak = machine.num_devices * machine.chip.peak_flops / machine.chip.devices
        times["ideal"] = flops / peak
        times["mfu"] = times["ideal"] / at_least
        times["tokens_per_second"] = tokens / at_least
        times["days"] = steps * at_least / 86400
    return found


def _with_minimal(trainer: Trainer, batch: Any, needed: int, available: int) -> int | None:
    """Returns the bytes that a step that recomputes entire layers would need with "minimal".

    This is an estimate: the bytes that it needs now and those of the activations that it would no
    longer recompute. Returns None if this is too much, or if the step recomputes less already.
    """
    if trainer.remat_policy(batch) != "full":
        return None
    needed += trainer.saved_bytes(batch, "minimal") - trainer.saved_bytes(batch, "full")
    return needed if needed <= _USABLE * available else None


def _memory(peak: int, parts: Mapping[str, int]) -> dict[str, Any]:
    """Returns the memory in bytes that a step needs on each device, in total and for each part."""
    found, rest = {}, peak
    for name, size in parts.items():
        # XLA may not hold all gradients at the same time.
        found[name] = size if name != "gradients" else max(0, min(size, rest))
        rest -= found[name]
    return {"needed_bytes": peak, "parts": {**found, "activations, temporaries": max(0, rest)}}


def _devices_of(target: Target) -> list[Any]:
    """Returns the devices of a target. JAX can compile for them even if they are not available."""
    if target.chip is None:
        jax.config.update("jax_num_cpu_devices", target.num_devices)
        return jax.devices("cpu")
    options = target.chip.topology_options(target.shape)
    return list(topologies.get_topology_desc(str(target), target.platform, **options).devices)


if __name__ == "__main__":
    main()
