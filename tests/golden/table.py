"""Prints the table of docs/t5x.md: how far mtf's losses are from T5X's recorded ones.

python -m tests.golden.table
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.golden import cases, comparing, recorded


def main() -> None:
    """Runs every case on one and on several devices."""
    differences: dict[str, list[float]] = {name: [] for name in cases.CASES}
    for number in recorded.NUM_DEVICES:
        for name, losses in ours(number).items():
            theirs = recorded.read(name)["losses"][str(number)]
            found = comparing.largest_difference(cases.CASES[name], losses, theirs)
            differences[name].append(found)
    header = " | ".join(f"{n} device{'s' * (n > 1)}" for n in recorded.NUM_DEVICES)
    print(f"| case | settings | {header} |\n|---|---|{'---|' * len(recorded.NUM_DEVICES)}")
    for name, found in differences.items():
        row = (f"`{name}`", settings(cases.CASES[name]), *(f"{x:.1e}" for x in found))
        print("|", " | ".join(row), "|")


def ours(num_devices: int) -> dict[str, list[float]]:
    """Returns the losses of all cases, trained in a process with so many devices."""
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    command = [sys.executable, "-m", "tests.golden.ours", str(num_devices), *cases.CASES]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(map(json.loads, done.stdout.splitlines()))


def settings(case: cases.Case) -> str:
    """Returns what a case sets, for the table."""
    values = {**case.model, **case.optimizer, **(case.adamw or {})}
    if case.schedule != cases.Case().schedule:
        values |= {"factors": case.schedule["factors"]}
    if case.network is cases.T5_1_0:
        values |= {"logits_via_embedding": True, "mlp_activations": "relu"}
    if case.network["dtype"] != "float32":
        values["dtype"] = case.network["dtype"]
    if case.num_microbatches > 1:
        values["num_microbatches"] = case.num_microbatches
    if case.packed:
        values["packed"] = True
    shown = ", ".join(f"`{name}={value}`" for name, value in values.items())
    if case.adamw is not None:
        shown = f"AdamW, {shown}"
    return f"{shown}; T5X's loss is {case.ratio:g} × mtf's" if case.ratio != 1.0 else shown


if __name__ == "__main__":
    main()
