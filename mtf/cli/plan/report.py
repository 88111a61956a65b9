"""Formats plans as text. Does not import JAX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mtf.base.host_memory import gib
from mtf.base.progress import count
from mtf.cli.plan.targets import Target

_TO_FIT = (
    "model.network.remat_policy=full, a larger value of trainer.num_microbatches, partitioner.fsdp "
    "or partitioner.num_partitions, or a larger target"
)


def text(name: str, target: Target, plan: Mapping[str, Any]) -> str:
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
    if "parts" not in plan:
        return
    yield from ((f"  {part}", gib(size)) for part, size in plan["parts"].items() if size)
    yield "mesh", " × ".join(f"{axis} {size}" for axis, size in plan["mesh"].items())
    whole, formula = plan["flops"] * plan["num_devices"], plan["formula_flops"]
    ratio = f"{count(formula)}FLOP by the formula, without recomputation ({whole / formula:.2f}×)"
    yield "FLOPs", f"{count(whole)}FLOP compiled, with recomputation; {ratio}"
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
    by_part = ", ".join(f"{name} {duration_text(x)}" for name, x in times["by_part"].items())
    days = f", {times['days']:,.2f} days for {plan['steps']:,} steps"
    yield "ideal", f"{duration_text(times['ideal'])}: the FLOPs at the chip's peak"
    yield "at least", f"{duration_text(times['at_least'])}, one operation at a time ({by_part})"
    if times["estimate"] is not None:
        yield "XLA's estimate", duration_text(times["estimate"])
    yield "at best", f"MFU {times['mfu']:.1%}, {count(times['tokens_per_second'])} tokens/s{days}"


def duration_text(value: float) -> str:
    """Formats a duration given in seconds; durations of less than a second are shown in ms."""
    return f"{value:.2f} s" if value >= 0.9995 else f"{value * 1000:.3g} ms"
