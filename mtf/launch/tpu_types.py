"""The types of Cloud TPU: how many hosts and chips a slice has, and how GKE names it.

Sources: https://docs.cloud.google.com/tpu/docs/v2 (and v3, v4, v5e, v5p, v6e) for sizes,
https://docs.cloud.google.com/tpu/docs/runtimes for runtime versions, and
https://docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus for GKE's names.
"""

from __future__ import annotations

import dataclasses
import math
import re

from mtf.errors import UserError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Generation:
    """A generation of TPUs.

    Attributes:
      cores_per_chip: the number in a type such as v4-32 counts cores; in v5litepod-16, chips.
      chips_per_host: chips of a host in a slice of several hosts.
      max_chips_of_one_host: a slice of so many chips or fewer has one host.
      runtime: software of the virtual machines, for JAX.
      gke: GKE's name of the accelerator.
      topologies: topologies that GKE offers.
    """

    cores_per_chip: int
    chips_per_host: int
    max_chips_of_one_host: int
    runtime: str
    gke: str
    topologies: tuple[str, ...]


_BASE = "tpu-ubuntu2204-base"
_3D = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16 16x16x16"
_2D = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_V3 = "2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32"

GENERATIONS = {
    "v2": Generation(2, 4, 4, _BASE, "", ()),
    "v3": Generation(2, 4, 4, _BASE, "tpu-v3-slice", tuple(_V3.split())),
    "v4": Generation(2, 4, 4, _BASE, "tpu-v4-podslice", tuple(_3D.split())),
    "v5p": Generation(2, 4, 4, "v2-alpha-tpuv5", "tpu-v5p-slice", (*_3D.split(), "16x16x24")),
    "v5litepod": Generation(
        1, 4, 8, "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice", tuple(_2D.split())
    ),
    "v6e": Generation(1, 4, 8, "v2-alpha-tpuv6e", "tpu-v6e-slice", tuple(_2D.split())),
}


@dataclasses.dataclass(frozen=True)
class Slice:
    """A slice of a TPU pod, such as v4-32."""

    generation: Generation
    chips: int

    @property
    def hosts(self) -> int:
        """The number of hosts, which Cloud TPU calls workers."""
        if self.chips <= self.generation.max_chips_of_one_host:
            return 1
        return self.chips // self.generation.chips_per_host

    @property
    def chips_per_host(self) -> int:
        """The number of chips of each host."""
        return self.chips // self.hosts

    @property
    def gke(self) -> str:
        """GKE's name of the accelerator."""
        is_one_v3 = self.generation.gke == "tpu-v3-slice" and self.hosts == 1
        return "tpu-v3-device" if is_one_v3 else self.generation.gke

    @property
    def topology(self) -> str:
        """The topology that GKE offers for this number of chips; "" if none."""
        for topology in self.generation.topologies:
            if math.prod(map(int, topology.split("x"))) == self.chips:
                return topology
        return ""


def find_slice(name: str) -> Slice:
    """Returns the slice of an accelerator type such as v4-32, v5litepod-16 or v5e-16.

    Raises:
      UserError: there is no such type.
    """
    found = re.fullmatch(r"([a-z0-9]+)-([1-9]\d{0,5})", name, re.ASCII)
    kind = {"v5e": "v5litepod"}.get(found[1], found[1]) if found else ""
    if found is None or kind not in GENERATIONS:
        raise UserError(
            f"--type {name}: expected a type of Cloud TPU such as v3-512, v4-32, v5litepod-16, "
            f"v5p-128 or v6e-64.{did_you_mean(name.partition('-')[0], GENERATIONS)}"
        )
    generation = GENERATIONS[kind]
    chips, rest = divmod(int(found[2]), generation.cores_per_chip)
    small = generation.max_chips_of_one_host
    fits = chips >= 4 if small == 4 else chips in (1, 4, 8) or chips > small
    if rest or not fits or (chips > small and chips % generation.chips_per_host):
        unit = "cores" if generation.cores_per_chip == 2 else "chips"
        raise UserError(
            f"--type {name}: {kind} has no slice of {found[2]} {unit}; the number is a multiple of "
            f"{generation.cores_per_chip * generation.chips_per_host}, as in "
            f"{kind}-{16 * generation.cores_per_chip}."
        )
    return Slice(generation, chips)


def type_name(name: str) -> str:
    """Returns Cloud TPU's name of a type: v5litepod-16 for v5e-16."""
    return name.replace("v5e-", "v5litepod-")
