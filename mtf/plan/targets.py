"""Targets of a plan, such as `v4:4x8x8`: which devices they have. Imports no JAX."""

from __future__ import annotations

import dataclasses
import math
import os

from mtf.errors import UserError, did_you_mean
from mtf.partitioning.chips import CHIPS, Chip

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = (
    *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8"),
    *("8x8x8", "8x8x16", "8x16x16", "16x16x16"),
)
# Chips → their slices, from the smallest to the largest that libtpu compiles for.
_SLICES = {
    "v2": ("2x2", "4x4", "8x8", "8x16", "16x16"),
    "v3": ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"),
    "v4": _CUBES,
    "v5e": _FLAT,
    "v5p": (*_CUBES, "16x16x24"),
    "v6e": (*_FLAT, "16x32"),
    "tpu7x": _CUBES[:5],
}
_GPUS = ("a100", "h100", "h200")
_MAX_GPUS_PER_HOST = 8
_MAX_DEVICES = 65_536


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices of a plan.

    Attributes:
      chip: the kind of accelerator; None: CPUs of this machine.
      shape: chips of a TPU slice in each dimension, (hosts, GPUs of a host), or (CPUs,).
    """

    chip: Chip | None
    shape: tuple[int, ...]

    @property
    def platform(self) -> str:
        """The platform of JAX: "tpu", "cuda" or "cpu"."""
        if self.chip is None:
            return "cpu"
        return "cuda" if self.chip.name in _GPUS else "tpu"

    @property
    def num_devices(self) -> int:
        """The number of JAX devices."""
        return math.prod(self.shape) * (1 if self.chip is None else self.chip.devices)

    @property
    def memory(self) -> int:
        """The bytes of memory of a device; of a CPU, its share of this machine's."""
        if self.chip is not None:
            return self.chip.memory // self.chip.devices
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total // self.num_devices

    @property
    def topology(self) -> str:
        """The shape as text."""
        return "x".join(map(str, self.shape))

    def __str__(self) -> str:
        return f"{'cpu' if self.chip is None else self.chip.name}:{self.topology}"

    def larger(self) -> list[Target]:
        """Returns larger targets with the same chips, the smallest first."""
        if self.platform == "tpu" and self.chip is not None:
            shapes = [_numbers(text) for text in _SLICES[self.chip.name]]
            shapes = [shape for shape in shapes if math.prod(shape) > math.prod(self.shape)]
        elif self.platform == "cuda":
            hosts, gpus = self.shape
            more = (hosts, _MAX_GPUS_PER_HOST) if gpus < _MAX_GPUS_PER_HOST else (2 * hosts, gpus)
            shapes = [more, (2 * more[0], more[1]), (4 * more[0], more[1])]
        else:
            shapes = []
        return [Target(self.chip, shape) for shape in shapes]


def parse_target(text: str) -> Target:
    """Returns the target of a text; raises UserError, with the nearest, if there is none."""
    name, _, shape = text.partition(":")
    chips = {chip.name: chip for chip in CHIPS if chip.name in (*_SLICES, *_GPUS)}
    if name != "cpu" and name not in chips:
        known = (*_SLICES, *_GPUS, "cpu")
        raise UserError(
            f"--target {text}: unknown chip {name!r}; expected one of {', '.join(known)}."
            + did_you_mean(name, known)
        )
    sizes = _numbers(shape)
    if name == "cpu":
        if len(sizes) != 1:
            raise UserError(f"--target {text}: expected the number of CPUs, such as cpu:8.")
    elif name in _GPUS:
        if len(sizes) != 2 or sizes[1] > _MAX_GPUS_PER_HOST:
            raise UserError(
                f"--target {text}: expected {name}:HOSTSxGPUS with at most {_MAX_GPUS_PER_HOST} "
                f"GPUs on each host, such as {name}:8x8."
            )
    elif "x".join(map(str, sizes)) not in _SLICES[name]:
        raise UserError(
            f"--target {text}: {name} has no slice {shape or '(missing)'}; expected one of "
            f"{', '.join(_SLICES[name])}.{_nearest_slices(name, shape, sizes)}"
        )
    target = Target(chips.get(name), sizes)
    if target.num_devices > _MAX_DEVICES:
        raise UserError(f"--target {text}: expected at most {_MAX_DEVICES:,} devices.")
    return target


def _numbers(text: str) -> tuple[int, ...]:
    """Returns the numbers of `4x8x8`; () if it is not such a text."""
    parts = text.split("x")
    good = all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts)
    return tuple(map(int, parts)) if good else ()


def _nearest_slices(name: str, shape: str, sizes: tuple[int, ...]) -> str:
    if not sizes:
        return did_you_mean(shape, _SLICES[name])
    wanted = math.prod(sizes)
    nearest = min(_SLICES[name], key=lambda text: abs(math.log(math.prod(_numbers(text)) / wanted)))
    return f" The nearest is {name}:{nearest}."
