"""What mtf knows of accelerators: one entry for each TPU and GPU. Does not import JAX.

`mtf plan`, the model FLOPs utilization (MFU) and the checks of device memory read these entries.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Gpu(NamedTuple):
    """The properties of a GPU that XLA needs; sizes are in bytes, and the clock rate is in GHz."""

    capability: int
    multiprocessors: int
    shared_memory: int
    shared_memory_of_block: int
    l2_cache: int
    clock: float


@dataclasses.dataclass(frozen=True)
class Chip:
    """An accelerator with its published specifications; for TPUs, those of a chip.

    Attributes:
      name: the name that `mtf plan` accepts; for TPUs, it is also libtpu's name.
      kinds: a regular expression that matches JAX's `device_kind`.
      devices: the number of JAX devices per chip.
      peak_flops: the peak dense bfloat16 FLOP/s.
      memory: the memory size in bytes.
      memory_bandwidth: the memory bandwidth in bytes/s.
      interconnect: the bandwidth to other chips over all links, in one direction, in bytes/s.
      network: the bandwidth from a GPU to other hosts in bytes/s; None if links connect all hosts.
      clock: the clock rate of a TPU in Hz; None if it is not published.
      slices: the topologies of the TPU slices that libtpu can compile for, starting with the
        smallest.
      gpu: the properties that XLA needs to compile for a GPU; None for TPUs, and for GPUs that
        `mtf plan` does not support.
      options: further options of the compiler for a TPU.
      matrix_unit: the number of rows and of columns of a TPU's matrix units, which multiply smaller
        matrices no faster; 1 for GPUs.
      latency: the time in seconds that a collective takes for few bytes: that of a link between
        neighbouring TPUs, or that of a GPU's communication library.
    """

    name: str
    kinds: str
    devices: int
    peak_flops: float
    memory: int
    memory_bandwidth: float
    interconnect: float
    network: float | None = None
    clock: float | None = None
    slices: str = ""
    gpu: Gpu | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    matrix_unit: int = 1
    latency: float = 1e-6

    def topology_options(self, shape: Sequence[int]) -> dict[str, Any]:
        """Returns the options with which JAX describes the devices of a target to the compiler.

        `shape` is that of a slice of TPUs, or (number of hosts, number of GPUs per host).
        """
        if self.gpu:
            one_slice = "x".join(map(str, (1, *shape)))
            return {"topology": one_slice, "target_config": self.gpu_config()}
        is_single = math.prod(shape) * self.devices == 1
        return {**self.options, **({"chips_per_host_bounds": (1, 1, 1)} if is_single else {})}

    def gpu_config(self) -> str:
        """Returns the GpuTargetConfigProto of a GPU for XLA, in text format."""
        assert self.gpu is not None
        gpu = self.gpu
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_core: {gpu.shared_memory}
  shared_memory_per_block_optin: {gpu.shared_memory_of_block} l2_cache_size: {gpu.l2_cache}
  core_count: {gpu.multiprocessors} fpus_per_core: {64 if gpu.capability == 8 else 128}
  clock_rate_ghz: {gpu.clock} cuda_compute_capability {{ major: {gpu.capability} }}
  memory_bandwidth: {int(self.memory_bandwidth)} device_memory_size: {self.memory}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{self.name.upper()}"
"""


_GIB = 2**30
_FLAT = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_CUBES = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4"
_ALL_CUBES = f"{_CUBES} 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16"
_V2, _V3 = "2x2 4x4 8x8 8x16 16x16", "2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32"
_AMPERE = Gpu(8, 108, 167_936, 166_912, 41_943_040, 1.41)
_HOPPER = Gpu(9, 132, 233_472, 232_448, 52_428_800, 1.98)
_BLACKWELL = Gpu(10, 148, 233_472, 232_448, 132_644_864, 1.965)
# The TPU figures are from https://cloud.google.com/tpu/docs/v2 and the pages of the other TPUs. The
# clock rates and links of v2 and v3 (4 × 496 and 656 Gbit/s) are from Jouppi et al. 2020,
# doi.org/10.1145/3360307, and those of v4 (6 × 50 GB/s) are from Jouppi et al. 2023,
# arxiv.org/abs/2304.01433. The clock rates of v5e and v5p follow from their peaks and their 4 and 8
# matrix units. The sizes of matrix units are from https://docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm,
# and the latency of a link is from https://jax-ml.github.io/scaling-book/sharding.
# The GPUs are SXM modules in DGX systems, which have 400 Gbit/s of InfiniBand for each H100, H200
# and B200, and 200 Gbit/s for each A100. Their figures are from
# https://www.nvidia.com/en-us/data-center/dgx-b200/ and the pages of the other GPUs, the properties
# that XLA needs are from its own specifications (github.com/openxla/xla, target_config/specs), and
# the latency is that of NCCL's rings (github.com/NVIDIA/nccl, src/graph/tuning.cc).
# `chip_of` returns the first chip whose pattern matches.
_MXU128: dict[str, Any] = {"matrix_unit": 128}
_MXU256: dict[str, Any] = {"matrix_unit": 256}
_NCCL: dict[str, Any] = {"latency": 6.6e-6}
CHIPS = [
    Chip("v2", "TPU v2", 2, 45e12, 16 * _GIB, 600e9, 248e9, None, 0.7e9, _V2, **_MXU128),
    Chip("v3", "TPU v3", 2, 123e12, 32 * _GIB, 900e9, 328e9, None, 0.94e9, _V3, **_MXU128),
    Chip(
        *("v4", "TPU v4", 1, 275e12, 32 * _GIB, 1200e9, 300e9, None, 1.05e9, _ALL_CUBES),
        options={"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)},
        **_MXU128,
    ),
    Chip(
        *("v5e", "TPU v5 (lite|e)", 1, 197e12, 16 * _GIB, 819e9, 200e9, None, 1.5e9, _FLAT),
        **_MXU128,
    ),
    Chip(
        *("v5p", "TPU v5", 1, 459e12, 95 * _GIB, 2765e9, 600e9, None, 1.75e9),
        f"{_ALL_CUBES} 16x16x24",
        **_MXU128,
    ),
    Chip(
        *("v6e", "TPU v6", 1, 918e12, 32 * _GIB, 1638e9, 400e9, None, None, f"{_FLAT} 16x32"),
        **_MXU256,
    ),
    Chip(*("tpu7x", "TPU7x", 2, 2307e12, 192 * _GIB, 7380e9, 600e9, None, None, _CUBES), **_MXU256),
    Chip("b200", "B200", 1, 2250e12, 180 * 10**9, 8000e9, 900e9, 50e9, gpu=_BLACKWELL, **_NCCL),
    Chip("h200", "H200", 1, 989e12, 141 * 10**9, 4800e9, 450e9, 50e9, gpu=_HOPPER, **_NCCL),
    Chip("h100", "H100", 1, 989e12, 80 * 10**9, 3350e9, 450e9, 50e9, gpu=_HOPPER, **_NCCL),
    Chip("a100", "A100", 1, 312e12, 80 * 10**9, 2039e9, 300e9, 25e9, gpu=_AMPERE, **_NCCL),
    Chip("v100", "V100", 1, 125e12, 32 * 10**9, 900e9, 150e9, 12.5e9, **_NCCL),
]


def register_chip(chip: Chip) -> None:
    """Adds an accelerator, which takes precedence over others; replaces one of the same name."""
    CHIPS[:] = [chip, *(each for each in CHIPS if each.name != chip.name)]


def chip_of(device_kind: str) -> Chip | None:
    """Returns the chip for JAX's `device_kind`, or None if the kind is unknown."""
    for chip in CHIPS:
        if re.search(chip.kinds, device_kind, re.IGNORECASE):
            return chip
    return None
