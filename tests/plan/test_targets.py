"""Which machines a plan can be made for, and what is said about others."""

from __future__ import annotations

import pytest

from mtf.errors import UserError
from mtf.partitioning.chips import CHIPS, chip_of
from mtf.plan.child import misfit
from mtf.plan.roofline import roofline
from mtf.plan.targets import parse_target

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "platform", "devices", "memory"),
    [
        ("v2:4x4", "tpu", 32, 8 * GIB),
        ("v3:16x16", "tpu", 512, 16 * GIB),
        ("v4:4x8x8", "tpu", 256, 32 * GIB),
        ("v5e:4x4", "tpu", 16, 16 * GIB),
        ("v5p:16x16x24", "tpu", 6144, 95 * GIB),
        ("v6e:16x16", "tpu", 256, 32 * GIB),
        ("tpu7x:4x4x4", "tpu", 128, 96 * GIB),
        ("h200:8x8", "cuda", 64, 141 * 10**9),
        ("h100:1x8", "cuda", 8, 80 * 10**9),
        ("a100:2x4", "cuda", 8, 80 * 10**9),
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
        ("v4:4x8", r"v4 has no slice 4x8; .* The nearest is v4:2x4x4"),
        ("v5e:16x32", r"v5e has no slice 16x32; .* The nearest is v5e:16x16"),
        ("v5:4x8x8", r"unknown chip 'v5'; expected one of v2, .* Did you mean v5p"),
        ("h200:64", r"expected h200:HOSTSxGPUS with at most 8 GPUs"),
        ("h200:4x16", r"expected h200:HOSTSxGPUS with at most 8 GPUs"),
        ("cpu:two", r"expected the number of CPUs, such as cpu:8"),
        ("cpu:0", r"expected the number of CPUs"),
        ("cpu:100000", r"at most 65,536 devices"),
    ],
)
def test_other_targets_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_target(text)


def test_larger_targets_come_in_order() -> None:
    assert [str(each) for each in parse_target("v5e:8x8").larger()] == ["v5e:8x16", "v5e:16x16"]
    assert str(parse_target("h200:1x4").larger()[0]) == "h200:1x8"
    assert parse_target("cpu:2").larger() == []


def test_devices_of_jax_are_recognized() -> None:
    kinds = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e", "NVIDIA H200": "h200"}
    for kind, name in kinds.items():
        chip = chip_of(kind)
        assert chip is not None
        assert chip.name == name
    assert chip_of("cpu") is None


def test_messages_of_compilers() -> None:
    temporaries = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (33.09G) exceeds available HBM (30.75G)."
    )
    assert misfit(temporaries) == {
        "needed_bytes": int(33.09 * GIB),
        "available_bytes": int(30.75 * GIB),
    }
    used = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 19.52G of 15.48G hbm. Exceeded hbm capacity by 4.04G."
    )
    found = misfit(used)
    assert found is not None
    assert found["needed_bytes"] == int(19.52 * GIB)
    assert misfit("INVALID_ARGUMENT: 2 is not 3") is None


def test_the_roofline_names_what_binds() -> None:
    v4 = next(chip for chip in CHIPS if chip.name == "v4")
    found = {
        "flops": 275e12 * 0.5,  # half a second
        "moved_bytes": 1200e9 * 0.25,
        "collectives": [{"sent_bytes": 300e9, "network_bytes": 0.0}],  # one second
        "formula_flops": 2 * 275e12 * 0.4,  # of two devices
        "tokens": 1000,
        "steps": 86400,
    }
    bound = roofline(v4, 2, found)
    assert bound.binding == "interconnect"
    assert bound.bound == pytest.approx(1.0)
    assert bound.mfu == pytest.approx(0.4)
    assert bound.tokens_per_second == pytest.approx(1000)
    assert bound.days == pytest.approx(1.0)


def test_bytes_to_other_hosts_take_the_network_and_not_the_links() -> None:
    h200 = next(chip for chip in CHIPS if chip.name == "h200")
    work = {"flops": 0.0, "moved_bytes": 0.0, "formula_flops": 0.0, "tokens": 1, "steps": None}
    # 50 GB over the network and 450 GB within a host take a second each.
    sent = [
        {"sent_bytes": 50e9, "network_bytes": 50e9},  # with one GPU of each host
        {"sent_bytes": 450e9, "network_bytes": 0.0},
    ]
    assert roofline(h200, 64, {**work, "collectives": sent}).seconds == {
        **{"FLOPs": 0.0, "memory": 0.0},
        **{"interconnect": pytest.approx(1.0), "network": pytest.approx(1.0)},
    }


def test_a_core_has_half_of_a_chip() -> None:
    v3 = next(chip for chip in CHIPS if chip.name == "v3")
    found = {"flops": 61.5e12, "moved_bytes": 0.0, "collectives": [], "formula_flops": 61.5e12}
    assert roofline(v3, 1, {**found, "tokens": 1, "steps": None}).bound == pytest.approx(1.0)
