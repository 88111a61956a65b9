"""Compares the training steps of mtf and T5X on TPUs that are not there, by XLA's own estimate.

Both steps of a recipe are compiled ahead of time for the same TPU, batch and mesh. The table has,
for each device, the estimate of XLA (the sum of `estimated_cycles` of all instructions, which run
one after another; those in loops count once per iteration), FLOPs, bytes, and the sum over
operations of the larger of FLOPs at peak and bytes at full bandwidth. Needs libtpu, and T5X for the
second row (docs/t5x.md has the pip commands), but no TPU:

    python benchmarks/aot.py recipes.ro_t5_base v4:2x2x1 --layers 4 --parts

XLA has no estimate for Pallas kernels. Each counts, in "kernels ms" and in the estimate, as the
larger of its bytes at full bandwidth and its FLOPs, by its `cost_estimate`, at a quarter of the
peak.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import re
import sys
import time
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

import fiddle as fdl
import jax
from jax.experimental import topologies

from mtf import config as config_lib
from mtf.cli.plan import hlo, work
from mtf.cli.plan.targets import Target, parse_target
from mtf.data.packing import to_batch
from mtf.partitioning import memory
from mtf.partitioning.mesh import PjitPartitioner
from mtf.training.trainer import Trainer

KERNEL_UTILIZATION = 0.25
COLUMNS = ("estimate ms", "kernels ms", "op by op ms", "TFLOP", "GB", "peak GiB", "CPU s")


def main() -> None:
    """Parses the command line and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="such as recipes.ro_t5_base")
    parser.add_argument("target", help="a slice that `mtf plan` accepts, such as v4:2x2x1")
    parser.add_argument("--layers", type=int, help="layers of each stack instead of the recipe's")
    parser.add_argument("--set", nargs="+", default=[], metavar="PATH=VALUE", help="of both sides")
    parser.add_argument("--mtf", nargs="+", default=[], metavar="PATH=VALUE", help="only of ours")
    parser.add_argument("--only", choices=("mtf", "t5x"), help="compile one side alone")
    parser.add_argument("--parts", action="store_true", help="also print what each part costs")
    parser.add_argument("--top", type=int, default=0, help="also print so many operations")
    parser.add_argument("--hlo", type=pathlib.Path, help="a folder for the compiled programs")
    args = parser.parse_args()
    target = parse_target(args.target)
    estimates = {}
    print(f"{args.recipe} on {target}: work of a device\n{'':5}", *(f"{c:>12}" for c in COLUMNS))
    for side in (args.only,) if args.only else ("mtf", "t5x"):
        started = time.process_time()
        config = _config(args, args.mtf if side == "mtf" else [])
        job = config_lib.build(config)
        compiled, mesh = _mtf(job, target) if side == "mtf" else _t5x(job, target, config)
        text = compiled.as_text()
        if args.hlo is not None:
            (args.hlo / f"{side}.hlo").write_text(text)
        operations = _operations(hlo.parse(text), mesh, target, job)
        columns = [sum(each[key] for each in operations) for key in ("cycles", "kernel", "in_turn")]
        estimates[side] = columns[0] + columns[1]
        values = [1e3 * seconds for seconds in (estimates[side], *columns[1:])]
        values += [sum(each["flops"] for each in operations) / 1e12]
        values += [sum(each["bytes"] for each in operations) / 1e9]
        values += [memory.peak_bytes(compiled, "tpu") / 2**30, time.process_time() - started]
        print(f"{side:5}", *(f"{value:12.2f}" for value in values), flush=True)
        if args.parts:
            _print_parts(operations)
        for each in sorted(operations, key=lambda each: -each["cycles"])[: args.top]:
            ms = " ".join(f"{1e3 * each[key]:8.3f}" for key in ("cycles", "in_turn"))
            print(f"  {ms} {each['times']:4.0f}× {each['part']}: {each['about']}")
    print(
        "XLA has no estimate for Pallas kernels. Each counts as the larger of its bytes at full "
        f"bandwidth and its FLOPs at {KERNEL_UTILIZATION:.0%} of the peak."
    )
    if len(estimates) == 2:
        print(f"mtf / t5x: {estimates['mtf'] / estimates['t5x']:.3f}")


def _config(args: argparse.Namespace, more: list[str]) -> fdl.Config:
    changes = [*args.set, *more]
    if args.layers:
        stacks = ("num_encoder_layers", "num_decoder_layers")
        changes += [f"model.network.{stack}={args.layers}" for stack in stacks]
    overrides = [config_lib.Override("set", change) for change in changes]
    config, problems = config_lib.try_overrides(config_lib.resolve(args.recipe), overrides)
    if problems:
        sys.exit("\n".join(map(str, problems)))
    return config


def _partitioner(job: Any, target: Target) -> PjitPartitioner:
    options = target.chip.topology_options(target.shape) if target.chip else {}
    topology = topologies.get_topology_desc(str(target), target.platform, **options)
    return PjitPartitioner.create(job.partitioner, list(topology.devices))


def _batch(job: Any) -> Any:
    data = job.data
    return jax.eval_shape(
        lambda: to_batch([], data.task_feature_lengths, job.batch_size, data.pack)
    )


def _mtf(job: Any, target: Target) -> tuple[Any, Any]:
    """Returns our compiled training step, and the mesh."""
    partitioner = _partitioner(job, target)
    trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer, job.random_seed)
    return trainer.lower(trainer.state_shapes, _batch(job)).compile(), partitioner.mesh


def _t5x(job: Any, target: Target, config: fdl.Config) -> tuple[Any, Any]:
    """Returns T5X's compiled training step of the same job, and its mesh."""
    from mtf.t5x import compatibility, engine, lowering  # noqa: F401, I001  # before T5X
    from absl import logging
    from t5x import partitioning

    logging.set_verbosity(logging.ERROR)
    lowered = lowering.lower(config)
    shapes = engine.state_shapes(lowered)
    ours = _partitioner(job, target).mesh
    assert ours.shape["fsdp"] == 1, "T5X has no fsdp axis; set partitioner.fsdp=1"
    made = jax.sharding.Mesh(ours.devices[:, 0], ("data", "model"))
    constrain = jax.lax.with_sharding_constraint
    # T5X leaves constraints out if the default backend is the CPU, as it is here.
    partitioning.with_sharding_constraint = lambda x, axes: (
        constrain(x, axes) if partitioning.global_mesh_defined() else x
    )

    class Partitioner(partitioning.PjitPartitioner):
        mesh = made

    rules = fdl.build(lowered.partitioner.logical_axis_rules)
    partitioner = Partitioner(num_partitions=made.shape["model"], logical_axis_rules=rules)
    lowered.model.input_vocabulary = lowered.model.output_vocabulary = None
    trainer = fdl.build(lowered.trainer_cls)(
        model=fdl.build(lowered.model),
        train_state=shapes,
        partitioner=partitioner,
        eval_names=[],
        summary_dir=None,
        train_state_axes=partitioner.get_mesh_axes(shapes),
        rng=jax.random.PRNGKey(0),
    )
    return trainer._partitioned_train_step.lower(shapes, _batch(job)).compile(), made


def _operations(program: hlo.Computation, mesh: Any, target: Target, job: Any) -> list[Any]:
    """Returns the work of each operation in one run of a program; times are in seconds."""
    chip, found = target.chip, []
    assert chip is not None and chip.clock, f"XLA has no estimate for {target}"
    for each, times in hlo.running(program):
        if each.opcode in ("while", "conditional", "call", "async-start"):
            continue  # Its parts are operations themselves.
        measured = work.measure([each], mesh.shape, [0] * mesh.size, chip)
        of_kernel = each.backend_config.get("custom_call_config", {}).get("cost_estimate", {})
        flops = measured["flops"] + float(of_kernel.get("flops", 0))
        by_part, kernel = measured["times"]["by_part"], 0.0
        if of_kernel:
            utilized = flops / chip.peak_flops * chip.devices / KERNEL_UTILIZATION
            kernel = max(utilized, by_part["memory"])
        metadata = each.attributes.get("metadata", "")
        name = re.search(r'op_name="([^"]*)"', metadata)
        amounts = {
            "cycles": measured["times"]["estimate"] or 0.0,
            "kernel": kernel,
            "in_turn": max(measured["times"]["at_least"], kernel),
            "flops": flops,
            "bytes": measured["moved_bytes"],
        }
        found.append(
            {
                **{key: times * value for key, value in amounts.items()},
                "times": times,
                "part": _part(each, name[1] if name else "", flops, job),
                "about": f"{each.opcode} {_types(each)} {name[1][-90:] if name else ''}",
            }
        )
    return found


def _types(each: hlo.Instruction) -> str:
    return ",".join(f"{x.dtype}{list(x.shape)}".replace(" ", "") for x in each.arrays[:3])


def _part(each: hlo.Instruction, name: str, flops: float, job: Any) -> str:
    """Returns the part of the step to which an operation belongs, by its arrays and its name."""
    arrays = [*each.arrays, *(array for operand in each.operands for array in operand.arrays)]
    arrays = [array for array in arrays if len(array.shape) > 1]
    lengths = set(job.data.task_feature_lengths.values())
    vocab = job.model.network.vocab_size
    inside = [each, *each.fused]
    if any(x.opcode.startswith(("all-", "reduce-scatter", "collective-")) for x in inside):
        return "collectives"
    if "custom_call_config" in each.backend_config:
        return "kernels"
    if any({vocab, vocab // 2, vocab // 4, vocab // 8} & {*array.shape} for array in arrays):
        return "embedding and logits, with their optimizer"
    if any(len(x.shape) > 2 and {*x.shape[-2:]} <= lengths for x in arrays):
        return "attention (queries × keys)"
    way = "backward" if "transpose(" in name else "forward"
    if flops:
        return f"products, {way}"
    if each.opcode.startswith(("copy", "slice", "dynamic-slice")) or each.opcode == "transpose":
        return "copies"
    if "jvp(" in name:
        return f"elementwise, {way}"
    return "optimizer and the rest"


def _print_parts(operations: list[Any]) -> None:
    sums: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for each in operations:
        keys = ("cycles", "kernel", "in_turn", "flops", "bytes")
        sums[each["part"]].update({key: each[key] for key in keys})
    for part, each in sorted(sums.items(), key=lambda item: -item[1]["cycles"]):
        values = [1e3 * (each["cycles"] + each["kernel"]), 1e3 * each["kernel"]]
        values += [1e3 * each["in_turn"], each["flops"] / 1e12, each["bytes"] / 1e9]
        print(f"{'':5}", *(f"{value:12.2f}" for value in values), f" {part}")


if __name__ == "__main__":
    main()
