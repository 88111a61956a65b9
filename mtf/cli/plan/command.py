"""Shows whether a recipe fits a machine and how fast it runs (`python -m mtf plan RECIPE …`).

A child process compiles the training step, so this module does not import JAX.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fiddle as fdl

from mtf import builders
from mtf import config as config_lib
from mtf.base import signals, strict_json
from mtf.base.errors import RunError, UserError
from mtf.base.host_memory import gib
from mtf.base.progress import count, waiting
from mtf.cli.command import add_change_options, add_trust_option, exit_status, new_parser
from mtf.cli.plan.targets import Target, parse_target, target_chips
from mtf.config import lookup
from mtf.config.run_dir import CONFIG_FILE
from mtf.data import TextFilesConfig
from mtf.jobs import Train
from mtf.storage import as_path
from mtf.training import AdafactorConfig

_EPILOG = f"""\
examples:
  python -m mtf plan recipes.t0pp_xxl --target v4:4x8x8
  python -m mtf plan recipes.t0pp_xxl --target v4:4x8x8 \\
      --set model.network.remat_policy=full

  python -m mtf plan flan-t5-xl/config.json --target h100:1x1

For a config.json of Hugging Face, or a directory with one, the plan is that of recipes.finetune
with 32 rows of 512 and 128 tokens. For one of a run, it is that of the run.

A target is CHIP:SHAPE, a slice of TPUs or hosts × GPUs, or cpu:N. The chips are
{", ".join(target_chips())}.
The devices need not be available, because the program is compiled but not run. The exit status is
0 if the run fits, 1 if it does not fit or the compiler failed, and 2 if the arguments are invalid.
"""

_LINES_OF_ERROR = 5
_TO_FIT = (
    "model.network.remat_policy=full, a larger value of trainer.num_microbatches, partitioner.fsdp "
    "or partitioner.num_partitions, or a larger target"
)
# The child process only compiles, so it must not occupy the accelerators of this machine.
_VARIABLES = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


def make_parser() -> argparse.ArgumentParser:
    """Creates the parser for the command's arguments."""
    parser = new_parser("plan", "Compile a recipe for a machine, available or not.", _EPILOG)
    names = "a training recipe (package.module.recipe or file.py:recipe), or a config.json"
    parser.add_argument("recipe", metavar="RECIPE[(kw=literal,…)]", help=names)
    add = parser.add_argument
    add("--target", required=True, metavar="CHIP:SHAPE", help="the machine, such as v4:4x8x8")
    add_change_options(parser)
    add_trust_option(add)
    add("--json", action="store_true", help="print the plan as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    options = make_parser().parse_args(argv)
    return exit_status(lambda: _main(options), only_shows=True)


def _main(options: argparse.Namespace) -> int:
    lookup.import_from_here()
    config_lib.trust_runs(options.trust)
    with _choosing_for(options.target):
        config = _config(options.recipe)
    config, problems = config_lib.try_overrides(config, options.overrides)
    target = parse_target(options.target)  # The recipe's module may have registered the chip.
    target.check_compiler()
    problems += config_lib.find_problems(config)
    if problems:
        raise UserError(config_lib.summarize(problems + config_lib.find_refusals(config)))
    job = config_lib.build(config)
    if not isinstance(job, Train):
        raise UserError(
            f"{options.recipe} does not train a model; expected a training recipe, such as "
            "recipes.t0pp_xxl."
        )
    job.partitioner.mesh_shape(target.num_devices)  # Check the mesh before the compiler starts.
    plan = _compile(config, target)
    if options.json:
        print(json.dumps({"recipe": options.recipe, **plan}, indent=1))
    else:
        print(as_text(options.recipe, target, plan))
    return 0 if plan["fits"] else 1


@contextlib.contextmanager
def _choosing_for(target: str) -> Iterator[None]:
    """Lets recipes in the block choose values for a target instead of the devices of this machine.

    They ask `mtf.base.environment.has_accelerator`.
    """
    before = os.environ.get("JAX_PLATFORMS")
    os.environ["JAX_PLATFORMS"] = "cpu" if target.startswith("cpu:") else "tpu"
    try:
        yield
    finally:
        del os.environ["JAX_PLATFORMS"]
        if before is not None:
            os.environ["JAX_PLATFORMS"] = before


def _config(recipe: str) -> fdl.Config:
    """Returns the config of a recipe, of a run, or of the fine-tuning of a Hugging Face model."""
    file = os.path.join(recipe, CONFIG_FILE) if os.path.isdir(recipe) else recipe
    if os.path.basename(file) != CONFIG_FILE or not os.path.isfile(file):
        return config_lib.resolve(recipe)
    if "model_type" not in strict_json.read_object(as_path(file)):
        return config_lib.load_config(file)
    start = builders.start.described_start(file)
    lengths = {"inputs": 512, "targets": 128}
    return fdl.Config(
        Train,
        model=builders.start.model(start, dropout_rate=0.1),
        data=fdl.Config(
            TextFilesConfig,
            vocabulary=start.vocabulary,
            task_feature_lengths=lengths,
            pack=False,
        ),
        optimizer=fdl.Config(AdafactorConfig, builders.schedule.constant(1e-3)),
        train_steps=1000,
        batch_size=32,
        partitioner=builders.start.partitioner(start),
    )


def _compile(config: fdl.Config, target: Target) -> dict[str, Any]:
    """Compiles the step of a training job in a child process and returns the job's plan.

    The plan is a dict with the keys `target`, `platform`, `num_devices`, `available_bytes`, `fits`
    and those that `mtf.cli.plan.child` returns, which describe the memory and the work of each
    device or, if the program does not fit, only the memory.

    Raises:
      UserError: the mesh or the batch size does not fit the number of devices.
      RunError: the compiler failed or aborted.
    """
    # The child process does not know chips that a module of the user registered.
    fields = {"config": config_lib.dump_json(config), "target": pickle.dumps(target).hex()}
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with waiting(f"compiling for {target}"):
        child = subprocess.run(
            [sys.executable, "-m", "mtf.cli.plan.child"],
            input=json.dumps(fields),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=os.environ | _VARIABLES | {"PYTHONPATH": path, signals.LAUNCHER: str(os.getpid())},
        )
    if child.returncode:
        raise RunError(_why_aborted(target, child.returncode, child.stderr))
    found = json.loads(child.stdout.splitlines()[-1])
    if "refused" in found:
        raise UserError(found["refused"])
    if "failed" in found:
        raise RunError(f"The compiler for {target} failed: {found['failed']}")
    return {
        "target": str(target),
        "platform": target.platform,
        "num_devices": target.num_devices,
        "fits": "parts" in found and found["needed_bytes"] <= target.memory,
        **found,
        "available_bytes": target.memory,
    }


def _why_aborted(target: Target, status: int, log: str) -> str:
    how = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
    if status == -signal.SIGKILL:
        how += ", probably because this machine has too little memory for the compiler"
    lines = [line for line in log.splitlines() if line.strip()][-_LINES_OF_ERROR:]
    return f"The compiler for {target} {how}. Its last output was:\n  " + "\n  ".join(lines)


def as_text(name: str, target: Target, plan: Mapping[str, Any]) -> str:
    """Returns the plan of a recipe as an aligned table."""
    rows = list(_rows(plan))
    width = max(len(row) for row, _ in rows)
    first = f"{name} on {target}: {target.num_devices:,} devices with {gib(target.memory)} each"
    return "\n".join([first, *(f"{row:<{width}}  {value}" for row, value in rows)])


def _share(plan: Mapping[str, Any]) -> str:
    needed, available = plan["needed_bytes"], plan["available_bytes"]
    share = f"{gib(needed)} of {gib(available)} on each device at the peak"
    if plan["platform"] == "cuda" and 0.75 < needed / available <= 1:
        share += "; JAX takes 75% by default, so set XLA_PYTHON_CLIENT_MEM_FRACTION=0.95"
    return share


def _rows(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "fits", f"{'yes' if plan['fits'] else 'NO'}: {plan.get('message') or _share(plan)}"
    if not plan["fits"]:
        yield "try", _TO_FIT
    elif minimal := plan.get("with_minimal_remat"):
        needed = f"about {gib(minimal)} by estimate, and fewer FLOPs"
        yield "try", f"model.network.remat_policy=minimal: {needed}"
    if "parts" not in plan:
        return
    yield from ((f"  {part}", gib(size)) for part, size in plan["parts"].items() if size)
    yield "mesh", " × ".join(f"{axis} {size}" for axis, size in plan["mesh"].items())
    whole, formula = plan["flops"] * plan["num_devices"], plan["formula_flops"]
    ratio = f"{count(formula)}FLOP by the formula, without recomputation ({whole / formula:.2f}×)"
    policy = f"remat_policy {plan['remat_policy']}"
    yield "FLOPs", f"{count(whole)}FLOP compiled, with recomputation ({policy}); {ratio}"
    yield "memory traffic", f"{count(plan['moved_bytes'])}B on each device"
    for each in plan["collectives"]:
        if each["sent_bytes"] < 0.001 * plan["collectives"][0]["sent_bytes"]:
            continue  # Omit negligible collectives, such as those for metrics.
        hosts = f" on {each['hosts']} hosts" if each["hosts"] > 1 else ""
        over = f"over {each['axes']} ({each['group']} devices{hosts}): {each['times']:,.0f}×"
        sent = f"{count(each['operand_bytes'])}B; a device sends {count(each['sent_bytes'])}B"
        yield f"  {each['kind']}", f"{over}, {sent}"
    times = plan.get("times")
    if times is None:
        yield "at least", "unknown, because mtf does not know the peak performance of CPUs"
        return
    by_part = ", ".join(f"{name} {duration_text(x)}" for name, x in times["by_part"].items() if x)
    days = f", {times['days']:,.2f} days for {plan['steps']:,} steps"
    yield "ideal", f"{duration_text(times['ideal'])}: the FLOPs of the formula at the chip's peak"
    yield "at least", f"{duration_text(times['at_least'])}, one operation at a time ({by_part})"
    if times["estimate"] is not None:
        yield "XLA's estimate", duration_text(times["estimate"])
    yield "at best", f"MFU {times['mfu']:.1%}, {count(times['tokens_per_second'])} tokens/s{days}"


def duration_text(value: float) -> str:
    """Formats a duration given in seconds; durations of less than a second are shown in ms."""
    return f"{value:.2f} s" if value >= 0.9995 else f"{value * 1000:.3g} ms"
