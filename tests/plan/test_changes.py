"""Which change is proposed, and the table of a search, with a compiler that needs known memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mtf import config as config_lib
from mtf.errors import UserError
from mtf.plan import changes, report, search
from mtf.plan.changes import smallest_change
from mtf.plan.compiling import Plan, Request
from mtf.plan.plot import plot_memory
from mtf.plan.targets import parse_target

GIB = 2**30


def fake_plan(request: Request) -> Plan:
    """40 GiB of state and 16 GiB of activations on one device without microbatches."""
    job = config_lib.build(request.config)
    partitioner, number = job.partitioner, job.trainer.num_microbatches
    data, fsdp, model = partitioner.mesh_shape(request.target.num_devices)
    if job.batch_size % (data * fsdp * number):
        raise UserError("batch_size cannot be divided")
    state = 40 * GIB // (fsdp * model)
    activations = 16 * GIB // (number * data * fsdp)
    found: dict[str, Any] = {
        "kind": "train",
        "mesh": {"data": data, "fsdp": fsdp, "model": model},
        "parts": {"parameters": state // 2, "optimizer state": state // 2},
        "peak_bytes": state + activations,
        "flops": 1e12 / request.target.num_devices,
        "formula_flops": 0.8e12,
        "moved_bytes": 1e9 * model,
        "collectives": [],
        "tokens": 1000,
        "steps": 10,
        "seconds": {"trace": 1.0, "compile": 2.0},
        "host_bytes": GIB,
        "cpu_seconds": 3.0,
    }
    return Plan(request.target, found)


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (changes, search):
        monkeypatch.setattr(module, "compile_plan", fake_plan)


def request_for(target: str, *settings: str) -> Request:
    config = config_lib.resolve("recipes.t0pp_xxl")
    plain = ("partitioner.num_partitions=1", "trainer.num_microbatches=1")
    request = Request(config, parse_target(target))
    return changes.changed(request, [*plain, *settings])


def proposed(request: Request) -> tuple[tuple[str, ...], str]:
    assert not fake_plan(request).fits
    change = smallest_change(request, lambda _: None)
    assert change is not None
    return change.settings, str(change.plan.target)


def test_sharded_state_where_only_the_state_is_too_large() -> None:
    request = request_for("v4:2x2x1", "batch_size=8")  # 40 + 4 GiB of 32
    assert proposed(request) == (("partitioner.fsdp=2",), "v4:2x2x1")


def test_as_much_sharding_as_is_needed() -> None:
    request = request_for("v5e:2x2", "batch_size=8")  # 40 + 4 GiB of 16: fsdp 4 gives 10 + 4
    assert proposed(request) == (("partitioner.fsdp=4",), "v5e:2x2")


def test_more_microbatches_where_only_activations_are_too_large() -> None:
    request = request_for("v5e:2x2", "partitioner.num_partitions=4", "batch_size=8")
    # 10 + 16 GiB of 16: with 4 microbatches 10 + 4.
    assert proposed(request) == (("trainer.num_microbatches=4",), "v5e:2x2")


def test_a_larger_target_where_no_setting_helps() -> None:
    request = request_for("v5e:1x1", "batch_size=8")  # 40 + 16 GiB of 16: on 4 devices 10 + 4
    assert proposed(request) == (("partitioner.fsdp=4",), "v5e:2x2")


def test_fewer_microbatches_where_the_batch_cannot_be_divided() -> None:
    request = request_for("v4:2x2x1", "partitioner.fsdp=4", "batch_size=8")
    request = changes.changed(request, ["trainer.num_microbatches=8"])
    with pytest.raises(UserError):
        fake_plan(request)
    change = smallest_change(request, lambda _: None)
    assert change is not None
    assert change.settings == ("trainer.num_microbatches=2",)
    assert "--set trainer.num_microbatches=2" in report.change_text(request.target, change)


def test_a_search_shows_each_row_and_then_the_best_first() -> None:
    shown: list[str] = []
    request = request_for("v4:2x2x1", "batch_size=8")
    choices = ["partitions=1,2,4", "fsdp=1,all", "microbatches=1,3", "remat=full"]
    found = search.search(request, choices, shown.append)
    # One partition with fsdp 4, two with fsdp 2 or 1, four: 40 GiB do not fit one device.
    rows = [tuple(row.values()) for _, row in found]
    assert rows[0] == (1, 4, 1, "full")
    assert set(rows) == {(1, 4, 1, "full"), (2, 1, 1, "full"), (2, 2, 1, "full"), (4, 1, 1, "full")}
    assert len(shown) == 1 + 2 * 5
    assert sum("not possible (batch)" in line for line in shown) == 5
    assert any("44.0 GiB: too large" in line for line in shown)
    # 1e12 FLOPs on 4 devices at 275e12/s.
    assert any("14.0 GiB    0.909 ms   80.0%" in line for line in shown)
    assert "the best: --set partitioner.num_partitions=1 partitioner.fsdp=4" in search.table(found)


def test_unknown_choices_of_a_search_are_refused() -> None:
    request = request_for("v4:2x2x1")
    with pytest.raises(UserError, match=r"--search fdsp=1: expected NAME=.* Did you mean fsdp"):
        search.search(request, ["fdsp=1"], print)


def test_small_numbers_keep_their_digits() -> None:
    assert report.gib(3 * 2**20) == "0.003 GiB"
    assert [report.duration_text(x) for x in (1.5, 0.9999, 0.25, 0.00042)] == [
        *("1.50 s", "1.00 s", "250 ms", "0.42 ms")
    ]


def test_the_answer_as_text_and_as_a_figure(tmp_path: Path) -> None:
    plan = fake_plan(request_for("v4:2x2x1", "partitioner.fsdp=4", "batch_size=8"))
    text = report.text("recipes.t0pp_xxl", plan)
    assert "yes: 14.0 GiB of 32.0 GiB on each device at the peak" in text
    assert "parameters                5.0 GiB" in text
    assert "activations, temporaries  4.0 GiB" in text
    # 1e12 FLOPs on 4 devices at 275e12/s; 1 GB at 1200 GB/s.
    assert "0.909 ms a step; FLOPs binds (FLOPs 0.909 ms, memory 0.833 ms" in text
    assert "MFU 80.0%, 1.1M tokens/s" in text
    plot_memory("recipes.t0pp_xxl", plan, str(tmp_path / "memory.png"))
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
