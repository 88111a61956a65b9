"""Plans as text. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtf.plan.changes import Change
from mtf.plan.compiling import Plan
from mtf.plan.targets import Target
from mtf.progress import count

_KINDS = {
    "train": "training step",
    "rank": "rank evaluation of a batch",
    "decode": "decoding of a batch",
}


def text(name: str, plan: Plan) -> str:
    """Returns the answer to a plan of a recipe, an aligned table."""
    target, found = plan.target, plan.found
    devices = f"{target.num_devices:,} devices with {gib(target.memory)} each"
    if not plan.compiles:
        return f"{name} on {target}: {devices}\n{_misfit(plan)}"
    mesh = " × ".join(f"{axis} {size}" for axis, size in found["mesh"].items())
    rows = [
        ("program", _KINDS[found["kind"]]),
        ("mesh", mesh),
        ("fits", f"{'yes' if plan.fits else 'NO'}: {_share(plan)}"),
        *((f"  {part}", gib(size)) for part, size in plan.memory_by_part.items()),
        *_work(plan),
        *_bound(plan),
        ("compiled in", _compiled(found)),
    ]
    width = max(len(row) for row, _ in rows)
    lines = [f"{row:<{width}}  {value}" for row, value in rows]
    return "\n".join([f"{name} on {target}: {devices}", *lines])


def change_text(target: Target, change: Change | None) -> str:
    """Returns what the smallest change is with which a program fits, maybe on another target."""
    if change is None:
        return "No change of the mesh, the microbatches or the target that was tried fits."
    plan = change.plan
    parts = [] if plan.target == target else [f"--target {plan.target}"]
    parts += [f"--set {' '.join(change.settings)}"] if change.settings else []
    bound = plan.roofline
    best = "" if bound is None else f", at best MFU {bound.mfu:.1%}"
    return f"smallest change that fits: {' '.join(parts)} ({_share(plan)}{best})"


def _misfit(plan: Plan) -> str:
    needed, available = plan.needed_bytes, plan.available_bytes
    if needed is None:
        return f"fits         NO: {plan.found['message']}"
    return f"fits         NO: the compiler needs {gib(needed)} of {gib(available)} on each device"


def _share(plan: Plan) -> str:
    needed = plan.needed_bytes or 0
    share = f"{gib(needed)} of {gib(plan.available_bytes)} on each device at the peak"
    if plan.target.platform == "cuda" and plan.fits and needed > 0.75 * plan.available_bytes:
        share += "; JAX takes 75% by default, so set XLA_PYTHON_CLIENT_MEM_FRACTION=0.95"
    return share


def _work(plan: Plan) -> list[tuple[str, str]]:
    found, number = plan.found, plan.target.num_devices
    whole, formula = found["flops"] * number, found["formula_flops"]
    rows = [
        (
            "FLOPs",
            f"{count(whole)}FLOP compiled, with recomputation; {count(formula)}FLOP by the "
            f"formula, without ({whole / formula:.2f}×)",
        ),
        ("memory traffic", f"{count(found['moved_bytes'])}B on each device"),
    ]
    for each in found["collectives"]:
        if each["sent_bytes"] < 0.001 * found["collectives"][0]["sent_bytes"]:
            continue  # such as those of the metrics
        hosts = f" on {each['hosts']} hosts" if each["hosts"] > 1 else ""
        rows.append(
            (
                f"  {each['kind']}",
                f"over {each['axes']} ({each['group']} devices{hosts}): {each['times']:,.0f}×, "
                f"{count(each['operand_bytes'])}B; a device sends {count(each['sent_bytes'])}B",
            )
        )
    return rows


def _bound(plan: Plan) -> list[tuple[str, str]]:
    bound = plan.roofline
    if bound is None:
        return [("at least", "not known: no figures of this machine are published")]
    times = ", ".join(f"{name} {duration_text(value)}" for name, value in bound.seconds.items())
    what = "step" if plan.found["kind"] == "train" else "batch"
    best = f"MFU {bound.mfu:.1%}, {count(bound.tokens_per_second)} tokens/s"
    if bound.days is not None:
        best += f", {bound.days:,.2f} days for {plan.found['steps']:,} steps"
    return [
        ("at least", f"{duration_text(bound.bound)} a {what}; {bound.binding} binds ({times})"),
        ("at best", best),
    ]


def _compiled(found: Mapping[str, Any]) -> str:
    seconds = found["seconds"]
    return (
        f"{seconds['compile']:.0f} s, after {seconds['trace']:.0f} s of tracing; "
        f"{found['cpu_seconds']:.0f} s of CPU and {gib(found['host_bytes'])} of this machine's "
        "memory"
    )


def gib(size: int) -> str:
    """Returns bytes as text in GiB, small ones with more digits."""
    digits = 1 if size >= 2**30 else 3
    return f"{size / 2**30:,.{digits}f} GiB"


def duration_text(value: float) -> str:
    """Returns seconds as text, those of less than a second in ms."""
    return f"{value:.2f} s" if value >= 0.9995 else f"{value * 1000:.3g} ms"
