"""The devices that JAX finds, and a short training run on them."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from mtf import signals
from mtf.doctor import child
from mtf.doctor.report import Section
from mtf.host_memory import gib

NUM_STEPS = 2
_SECONDS_FOR_DEVICES = 180
_SECONDS_FOR_TRAINING = 600
_NUM_LINES, _NUM_HELD_OUT = 256, 32
_BATCH_SIZE = 16


def devices() -> tuple[Section, int | None]:
    """Returns the devices that JAX finds, and their number; None if JAX finds none."""
    status, output, errors = child.run(["mtf.doctor.child"], os.getcwd(), _SECONDS_FOR_DEVICES)
    if status != 0:
        rows = [("JAX finds none", ""), *(("", line) for line in errors.splitlines())]
        why = errors.splitlines()[-1]
        return Section("devices", rows, [f"JAX finds no device: {why}"], works=False), None
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    memory = "" if found["bytes"] is None else f", {gib(found['bytes'])} each"
    rows = [
        (found["platform"], f"{number} × {kind}{memory}") for kind, number in found["kinds"].items()
    ]
    return Section("devices", rows, _unused(found["platform"])), sum(found["kinds"].values())


def _unused(platform: str) -> list[str]:
    """Returns which accelerators of this machine JAX does not use."""
    if platform != "cpu":
        return []
    if (only := os.environ.get("JAX_PLATFORMS")) is not None:
        why = f"JAX_PLATFORMS is {only!r}; unset it"
    else:
        why = "the extra {extra} may be missing: pip install 'mtf-jax[{extra}]'"
    problems = []
    if Path("/dev/nvidiactl").exists():
        problems.append(f"JAX does not use this machine's NVIDIA GPU: {why.format(extra='cuda')}")
    if Path("/dev/accel0").exists():
        problems.append(f"JAX does not use this machine's TPU: {why.format(extra='tpu')}")
    return problems


def training(num_devices: int) -> Section:
    """Trains the quickstart's network for two steps in a process of its own, on a few lines.

    The run writes a checkpoint to a temporary directory, which is removed.
    """
    with tempfile.TemporaryDirectory() as folder, signals.removed_on_stop(folder):
        lines = (f"The square of {i} is {i * i}, its cube {i**3}.\n" for i in range(_NUM_LINES))
        Path(folder, "text.txt").write_text("".join(lines))
        settings = {
            "train_steps": NUM_STEPS,
            "batch_size": num_devices * math.ceil(_BATCH_SIZE / num_devices),
            "data.files": "text.txt",
            "data.num_held_out": _NUM_HELD_OUT,
            "trainer.eval_period": None,
            "num_samples": 0,
            "model_dir": "run",
        }
        changes = [f"{name}={value}" for name, value in settings.items()]
        command = ["mtf.run", "recipes.quickstart", "--set", *changes]
        begin = time.monotonic()
        status, _, errors = child.run(command, folder, _SECONDS_FOR_TRAINING)
        seconds = time.monotonic() - begin
        metrics = Path(folder, "run", "train", "metrics.jsonl")
        last = json.loads(metrics.read_text().splitlines()[-1]) if status == 0 else {}
    name = f"{NUM_STEPS} steps of recipes.quickstart"
    loss = last.get("loss_per_target_token")
    if status != 0 or loss is None or not math.isfinite(loss):
        why = errors if status != 0 else f"the loss is {loss}"
        rows = [(name, f"failed after {seconds:.1f} s"), *(("", line) for line in why.splitlines())]
        return Section("training", rows, [f"Training failed: {why.splitlines()[-1]}"], works=False)
    compiling = last["timing/compilation_seconds"]
    text = (
        f"{seconds:.1f} s, of which {compiling:.1f} s to compile; loss {loss:.2f} per target token"
    )
    return Section("training", [(name, text)])
