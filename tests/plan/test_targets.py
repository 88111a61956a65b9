"""Which machines a plan can be made for, and what is said about others."""

from __future__ import annotations

import pytest

from mtf.base.errors import UserError
from mtf.cli.plan.targets import parse_target
from mtf.partitioning.chips import chip_of

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "platform", "devices", "memory"),
    [
        ("v3:16x16", "tpu", 512, 16 * GIB),
        ("v4:4x8x8", "tpu", 256, 32 * GIB),
        ("v5p:16x16x24", "tpu", 6144, 95 * GIB),
        ("tpu7x:4x4x4", "tpu", 128, 96 * GIB),
        ("h200:8x8", "cuda", 64, 141 * 10**9),
    ],
)
def test_targets(text: str, platform: str, devices: int, memory: int) -> None:
    target = parse_target(text)
    assert (target.platform, target.num_devices, target.memory) == (platform, devices, memory)
    assert str(target) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v4", r"v4 has no slice \(missing\); expected one of 2x2x1, 2x2x2"),
        ("v4:4x8", r"v4 has no slice 4x8; .* Did you mean 4x8x8, 4x4x8"),
        ("v5e:16x32", r"v5e has no slice 16x32; .* Did you mean 16x16"),
        ("v5:4x8x8", r"unknown chip 'v5'; expected one of v2, .* Did you mean v5p"),
        ("h200:64", r"expected h200:HOSTSxGPUS with at most 8 GPUs"),
        ("h200:4x16", r"expected h200:HOSTSxGPUS with at most 8 GPUs"),
        ("cpu:two", r"expected the number of CPUs, such as cpu:8"),
        ("cpu:0", r"expected the number of CPUs"),
    ],
)
def test_other_targets_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_target(text)


def test_devices_of_jax_are_recognized() -> None:
    kinds = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e", "NVIDIA H200": "h200"}
    for kind, name in kinds.items():
        chip = chip_of(kind)
        assert chip is not None
        assert chip.name == name
    assert chip_of("cpu") is None


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("v4:2x2x2", {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)}),
        ("v5e:1x1", {"chips_per_host_bounds": (1, 1, 1)}),
        ("v5e:2x2", {}),
    ],
)
def test_options_of_the_compiler(target: str, options: dict[str, object]) -> None:
    found = parse_target(target)
    assert found.chip is not None
    assert found.chip.topology_options(found.shape) == options
