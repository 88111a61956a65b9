"""Compiles a recipe with many meshes and settings, and finds the fastest. Imports no JAX."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mtf.errors import RunError, UserError, did_you_mean
from mtf.plan.changes import Change, changed
from mtf.plan.compiling import Plan, Request, compile_plan
from mtf.plan.report import duration_text, gib
from mtf.progress import count

# Name in --search → setting.
SETTINGS = {
    "partitions": "partitioner.num_partitions",
    "fsdp": "partitioner.fsdp",
    "microbatches": "trainer.num_microbatches",
    "remat": "model.network.remat_policy",
}
_PARTITIONS = (1, 2, 4, 8, 16)
_HEADER = ("partitions", "fsdp", "microbatches", "remat", "peak", "at least", "MFU", "binds")
_WIDTHS = (10, 6, 12, 7, 18, 10, 6, 12)


def search(
    request: Request, choices: Sequence[str], show: Callable[[str], None]
) -> list[tuple[Change, dict[str, Any]]]:
    """Compiles each combination, shows a row for each, and returns those that fit, fastest first.

    Args:
      request: the program, which is a training step.
      choices: NAME=VALUE,VALUE…, with names of SETTINGS; other settings have several values by
        default.
      show: called with each line of the table.
    """
    from mtf import config as config_lib
    from mtf.jobs import Train

    job = config_lib.build(request.config)
    if not isinstance(job, Train):
        raise UserError(
            f"--search is for training recipes; this one configures {type(job).__name__}."
        )
    if job.partitioner.model_parallel_submesh is not None:
        raise UserError(
            "--search changes partitioner.num_partitions, but the recipe has a submesh; pass "
            "--set partitioner.model_parallel_submesh=None"
        )
    values = _default_values(job) | _parsed(choices)
    show(_line(_HEADER))
    found = []
    for row in _rows(values, request.target.num_devices):
        settings = tuple(f"{SETTINGS[name]}={value}" for name, value in row.items())
        try:
            plan = compile_plan(changed(request, settings))
        except (UserError, RunError) as error:
            why = "batch" if "batch_size" in str(error) else "failed"
            show(_line((*row.values(), f"not possible ({why})")))
            continue
        show(_line((*row.values(), *_result(plan))))
        if plan.fits:
            found.append((Change(settings, plan), row))
    return sorted(found, key=lambda each: _order(each[0].plan))


def table(found: Sequence[tuple[Change, Mapping[str, Any]]]) -> str:
    """Returns the table of a search, the best first, with the settings of the best."""
    if not found:
        return "None of them fits."
    lines = [_line(_HEADER)]
    lines += [_line((*row.values(), *_result(change.plan))) for change, row in found]
    return "\n".join([*lines, f"the best: --set {' '.join(found[0][0].settings)}"])


def _order(plan: Plan) -> tuple[float, int]:
    return (plan.roofline.bound if plan.roofline else 0.0), plan.needed_bytes or 0


def _default_values(job: Any) -> dict[str, list[Any]]:
    microbatches, remat = job.trainer.num_microbatches, job.model.network.remat_policy
    return {
        "partitions": list(_PARTITIONS),
        "fsdp": [1, "all"],
        "microbatches": sorted({1, microbatches}),
        "remat": sorted({"full", "minimal", remat}),
    }


def _parsed(choices: Sequence[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for text in choices:
        name, _, values = text.partition("=")
        if name not in SETTINGS or not values:
            raise UserError(
                f"--search {text}: expected NAME=VALUE,VALUE… with a name of "
                f"{', '.join(SETTINGS)}.{did_you_mean(name, SETTINGS)}"
            )
        found[name] = [int(x) if x.isdigit() else x for x in values.split(",")]
    return found


def _rows(values: Mapping[str, Sequence[Any]], num_devices: int) -> Iterator[dict[str, Any]]:
    """Yields the combinations that the devices allow; fsdp "all" is what partitions leave."""
    seen = set()
    for combination in itertools.product(*(values[name] for name in SETTINGS)):
        row = dict(zip(SETTINGS, combination, strict=True))
        if num_devices % int(row["partitions"]):
            continue
        left = num_devices // int(row["partitions"])
        row["fsdp"] = left if row["fsdp"] == "all" else row["fsdp"]
        if left % int(row["fsdp"]) == 0 and tuple(row.values()) not in seen:
            seen.add(tuple(row.values()))
            yield row


def _result(plan: Plan) -> tuple[str, ...]:
    needed = gib(plan.needed_bytes or 0)
    if not plan.fits:
        return (f"{needed}: too large",)
    if plan.roofline is None:
        return (needed, "", "", f"{count(plan.found['flops'])}FLOP")
    bound = plan.roofline
    return (needed, duration_text(bound.bound), f"{bound.mfu:.1%}", bound.binding)


def _line(cells: Sequence[Any]) -> str:
    return "  ".join(
        f"{cell!s:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=False)
    ).rstrip()
