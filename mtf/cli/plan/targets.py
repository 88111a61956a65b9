"""The targets of a plan, such as `v4:4x8x8`. Does not import JAX."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import re
from importlib.metadata import version

from mtf.base.errors import UserError, did_you_mean
from mtf.base.host_memory import total_bytes
from mtf.partitioning.chips import CHIPS, Chip


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices for which a plan is made.

    Attributes:
      chip: the kind of accelerator, or None for the CPUs of this machine.
      shape: for TPUs, the number of chips along each dimension of the slice; for GPUs, (number of
        hosts, number of GPUs per host); for CPUs, (number of CPUs,).
    """

    chip: Chip | None
    shape: tuple[int, ...]

    @property
    def platform(self) -> str:
        """The JAX platform: "tpu", "cuda" or "cpu"."""
        if self.chip is None:
            return "cpu"
        return "cuda" if self.chip.gpu else "tpu"

    @property
    def num_devices(self) -> int:
        """The number of JAX devices."""
        return math.prod(self.shape) * (1 if self.chip is None else self.chip.devices)

    @property
    def memory(self) -> int:
        """The memory of a device in bytes; CPUs share the memory of this machine equally."""
        if self.chip is not None:
            return self.chip.memory // self.chip.devices
        return total_bytes() // self.num_devices

    def __str__(self) -> str:
        name = "cpu" if self.chip is None else self.chip.name
        return f"{name}:{'x'.join(map(str, self.shape))}"

    def check_compiler(self) -> None:
        """Raises UserError, with the installation command, if the target's compiler is missing."""
        package, wanted = "libtpu", "'mtf-jax[tpu]'"
        if self.platform == "cuda":
            package, release = "jax-cuda12-plugin", version("jax")
            wanted = f"--no-deps {package}=={release} jax-cuda12-pjrt=={release}"
        # The package for CUDA 13 is accepted as well.
        names = [package.replace("-", "_").replace("12", each) for each in ("12", "13")]
        if self.chip is not None and not any(map(importlib.util.find_spec, names)):
            raise UserError(
                f"--target {self}: compiling for this target requires the package {package}, which "
                f"is not installed. Run: pip install {wanted}"
            )


def target_chips() -> dict[str, Chip]:
    """Returns the chips for which plans can be made, by their names."""
    return {chip.name: chip for chip in CHIPS if chip.slices or chip.gpu}


def parse_target(text: str) -> Target:
    """Returns the target named `text`; raises UserError, with suggestions, if there is none."""
    name, _, shape = text.partition(":")
    chips, are_sizes = target_chips(), re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape, re.ASCII)
    sizes = tuple(map(int, shape.split("x"))) if are_sizes else ()
    chip, known, expected = chips.get(name), [*chips, "cpu"], ""
    if name not in known:
        expected = f"unknown chip {name!r}; expected one of {', '.join(known)}."
        expected += did_you_mean(name, known)
    elif chip is None:
        if len(sizes) != 1:
            expected = "expected the number of CPUs, such as cpu:8."
    elif chip.gpu:
        if len(sizes) != 2 or sizes[1] > 8:
            expected = f"expected {name}:HOSTSxGPUS with at most 8 GPUs on each host."
    elif shape not in (slices := chip.slices.split()):
        expected = f"{name} has no slice {shape or '(missing)'}; expected one of "
        expected += f"{', '.join(slices)}.{did_you_mean(shape, slices)}"
    if expected:
        raise UserError(f"--target {text}: {expected}")
    return Target(chip, sizes)
