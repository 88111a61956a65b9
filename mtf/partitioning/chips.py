"""Published figures of accelerators. Imports no JAX."""

from __future__ import annotations

import dataclasses
import re

_CLOUD_TPU = "https://cloud.google.com/tpu/docs/"


@dataclasses.dataclass(frozen=True)
class Chip:
    """A kind of accelerator; figures of a TPU are those of its chip, as the vendor publishes them.

    Attributes:
      name: the name in targets of `mtf.plan`.
      kinds: pattern of jax's `device_kind`.
      devices: number of JAX devices of a chip.
      peak_flops: dense bfloat16 FLOP/s.
      memory: bytes of its memory.
      memory_bandwidth: bytes/s between the chip and its memory.
      interconnect: bytes/s that a chip sends to others over all its links (half of the
        bidirectional bandwidth).
      network: bytes/s that a GPU sends to other hosts; None: the links reach all hosts.
      source: where the figures are published.
    """

    name: str
    kinds: str
    devices: int
    peak_flops: float
    memory: int
    memory_bandwidth: float
    interconnect: float
    network: float | None
    source: str


_GIB = 2**30
# The first pattern that matches is taken.
CHIPS = (
    # 4 links of 496 and 656 Gbit/s (Jouppi et al. 2020, doi.org/10.1145/3360307).
    Chip("v2", "TPU v2", 2, 45e12, 16 * _GIB, 600e9, 248e9, None, _CLOUD_TPU + "v2"),
    Chip("v3", "TPU v3", 2, 123e12, 32 * _GIB, 900e9, 328e9, None, _CLOUD_TPU + "v3"),
    # 6 links of 50 GB/s (Jouppi et al. 2023, arxiv.org/abs/2304.01433).
    Chip("v4", "TPU v4", 1, 275e12, 32 * _GIB, 1200e9, 300e9, None, _CLOUD_TPU + "v4"),
    Chip(
        *("v5e", "TPU v5 lite|TPU v5e", 1, 197e12, 16 * _GIB, 819e9, 200e9, None),
        _CLOUD_TPU + "v5e",
    ),
    Chip("v5p", "TPU v5", 1, 459e12, 95 * _GIB, 2765e9, 600e9, None, _CLOUD_TPU + "v5p"),
    Chip(
        *("v6e", "TPU v6 lite|TPU v6e", 1, 918e12, 32 * _GIB, 1638e9, 400e9, None),
        _CLOUD_TPU + "v6e",
    ),
    Chip("tpu7x", "TPU7x", 2, 2307e12, 192 * _GIB, 7380e9, 600e9, None, _CLOUD_TPU + "tpu7x"),
    # SXM modules in DGX systems: 400 Gbit/s of InfiniBand for each H100 and H200, 200 for A100.
    Chip(
        *("h200", "H200", 1, 989e12, 141 * 10**9, 4800e9, 450e9, 50e9),
        "https://www.nvidia.com/en-us/data-center/h200/",
    ),
    Chip(
        *("h100", "H100", 1, 989e12, 80 * 10**9, 3350e9, 450e9, 50e9),
        "https://www.nvidia.com/en-us/data-center/h100/",
    ),
    Chip(
        *("a100", "A100", 1, 312e12, 80 * 10**9, 2039e9, 300e9, 25e9),
        "https://www.nvidia.com/en-us/data-center/a100/",
    ),
    Chip(
        *("v100", "V100", 1, 125e12, 32 * 10**9, 900e9, 150e9, 12.5e9),
        "https://www.nvidia.com/en-us/data-center/v100/",
    ),
)


def chip_of(device_kind: str) -> Chip | None:
    """Returns the chip of a device; None if it is not known."""
    for chip in CHIPS:
        if re.search(chip.kinds, device_kind, re.IGNORECASE):
            return chip
    return None
