"""Devices of a target that need not be here. Imports JAX."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from typing import Any

from mtf.errors import UserError
from mtf.plan.targets import Target

# Compute capability, multiprocessors, their shared memory, that of a block, L2 cache, clock in GHz.
_GPUS = {
    "a100": (8, 108, 167_936, 166_912, 41_943_040, 1.41),
    "h100": (9, 132, 233_472, 232_448, 52_428_800, 1.98),
    "h200": (9, 132, 233_472, 232_448, 52_428_800, 1.98),
}
# Variables that libtpu and its plugin read when they describe a machine that is not there.
TPU_VARIABLES = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


def check_compiler(target: Target) -> None:
    """Raises UserError, with the command that installs it, if the target's compiler is missing."""
    if target.platform == "cpu":
        return
    module, command = {
        "tpu": ("libtpu", "pip install 'mtf-jax[tpu]'"),
        "cuda": (
            "jax_cuda12_plugin",
            f"pip install --no-deps jax-cuda12-plugin=={version('jax')} "
            f"jax-cuda12-pjrt=={version('jax')}",
        ),
    }[target.platform]
    # A newer plugin serves as well.
    modules = (module, module.replace("cuda12", "cuda13"))
    if not any(importlib.util.find_spec(name) for name in modules):
        raise UserError(
            f"--target {target}: compiling for it needs the package "
            f"{module.replace('_', '-')}, which is not installed; run: {command}"
        )


def devices_of(target: Target) -> list[Any]:
    """Returns the devices of a target, which JAX can compile for, but not run on."""
    import jax
    from jax.experimental import topologies

    if target.platform == "cpu" or target.chip is None:
        jax.config.update("jax_num_cpu_devices", target.num_devices)
        return jax.devices("cpu")
    options: dict[str, Any] = {}
    if target.platform == "cuda":
        # One slice of hosts × GPUs.
        options = {"topology": f"1x{target.topology}", "target_config": _gpu_config(target)}
    elif target.chip.name == "v4":
        options = {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)}
    described = topologies.get_topology_desc(str(target), platform=target.platform, **options)
    return list(described.devices)


def _gpu_config(target: Target) -> str:
    """Returns XLA's description of a GPU, a GpuTargetConfigProto as text."""
    assert target.chip is not None
    capability, cores, shared, shared_of_block, cache, clock = _GPUS[target.chip.name]
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {shared_of_block}
  threads_per_core_limit: 2048
  core_count: {cores}
  fpus_per_core: {128 if capability == 9 else 64}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(target.chip.memory_bandwidth)}
  l2_cache_size: {cache}
  clock_rate_ghz: {clock}
  device_memory_size: {target.memory}
  cuda_compute_capability {{ major: {capability} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{target.chip.name.upper()}"
"""
