"""A lower bound of a step's time from a chip's published figures. Imports no JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mtf.partitioning.chips import Chip


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The shortest time in which a device can do a program's work, for each of its parts.

    The parts may overlap, so the longest is a lower bound of the step's time.

    Attributes:
      seconds: "FLOPs", "memory", "interconnect" and, for GPUs of several hosts, "network" → time.
      mfu: model FLOPs utilization at the bound: FLOPs of the formula, without recomputation, by
        those of the peak.
      tokens_per_second: tokens of all devices at the bound.
      days: time for all steps at the bound; None: the number of steps is not known.
    """

    seconds: Mapping[str, float]
    mfu: float
    tokens_per_second: float
    days: float | None

    @property
    def bound(self) -> float:
        """The lower bound in seconds."""
        return max(self.seconds.values())

    @property
    def binding(self) -> str:
        """The part that takes longest."""
        return max(self.seconds, key=self.seconds.__getitem__)


def roofline(chip: Chip, num_devices: int, found: Mapping[str, Any]) -> Roofline:
    """Returns the roofline of what `mtf.plan.child` found, for devices of a chip."""
    collectives: Sequence[Mapping[str, Any]] = found["collectives"]
    sent = sum(each["sent_bytes"] for each in collectives)
    network = sum(each["network_bytes"] for each in collectives)
    seconds = {
        "FLOPs": found["flops"] * chip.devices / chip.peak_flops,
        "memory": found["moved_bytes"] * chip.devices / chip.memory_bandwidth,
        # What goes to other hosts does not take the links between the GPUs of a host.
        "interconnect": (sent - network) * chip.devices / chip.interconnect,
    }
    if chip.network is not None:
        seconds["network"] = network * chip.devices / chip.network
    bound = max(*seconds.values(), 1e-12)
    steps = found["steps"]
    return Roofline(
        seconds,
        found["formula_flops"] / (num_devices * chip.peak_flops / chip.devices * bound),
        found["tokens"] / bound,
        None if steps is None else steps * bound / 86400,
    )
