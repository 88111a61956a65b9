"""Draws the memory of a device by part."""

from __future__ import annotations

from mtf.plan.compiling import Plan
from mtf.storage import as_path
from mtf.writing import write_figure


def plot_memory(name: str, plan: Plan, file: str) -> None:
    """Writes a figure of a device's memory at the peak, with what is available."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.6), layout="constrained")
    axes = figure.add_subplot()
    start = 0.0
    for part, size in plan.memory_by_part.items():
        gib = size / 2**30
        axes.barh([0], [gib], left=start, label=f"{part} {gib:,.2f} GiB")
        start += gib
    available = plan.available_bytes / 2**30
    axes.axvline(available, color="black", linestyle="--", label=f"device {available:,.1f} GiB")
    axes.set_yticks([])
    axes.set_xlim(0, 1.05 * max(start, available))
    axes.set_xlabel("GiB on each device")
    axes.set_title(f"{name} on {plan.target}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    write_figure(figure, as_path(file))
