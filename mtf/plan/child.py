"""`python -m mtf.plan.child OUTPUT < REQUEST`: compiles one program, and writes what it found.

It is a process of its own, because a compiler may abort, and because the devices of JAX cannot be
changed in a process. REQUEST, a line, and OUTPUT are JSON. At the end of stdin, the process ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtf.errors import UserError
from mtf.plan.targets import Target, parse_target

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# What compilers say about a program that is larger than the memory of a device.
_SIZE = r"([\d.]+)([KMGT]?)"
_MISFITS = (
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"required for HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"memory required.*?\({_SIZE}\) exceeds available.*?\({_SIZE}\)"),
)


def main(output: str) -> None:
    """Answers the request on stdin in a file."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer = _answer(request)
    except UserError as error:
        answer = {"refused": str(getattr(error, "proxy_base_exception", error))}
    except Exception as error:
        answer = misfit(str(error)) or {"failed": f"{type(error).__name__}: {error}"}
    used = resource.getrusage(resource.RUSAGE_SELF)
    answer["host_bytes"] = used.ru_maxrss * 1024  # Linux counts in KiB.
    answer["cpu_seconds"] = used.ru_utime + used.ru_stime
    Path(output).write_text(json.dumps(answer), encoding="utf-8")


def _end_with_parent() -> None:
    """Ends this process, also while it compiles, when nobody waits for the answer anymore."""
    # Not through sys.stdin, whose lock would be held when this process ends by itself.
    while os.read(0, 1):
        pass
    os._exit(1)


def misfit(message: str) -> dict[str, Any] | None:
    """Returns what a compiler's message says about memory; None if it is about something else."""
    for pattern in _MISFITS:
        found = pattern.search(message)
        if found:
            needed, unit, available, unit_available = found.groups()
            return {
                "needed_bytes": int(float(needed) * _UNITS[unit]),
                "available_bytes": int(float(available) * _UNITS[unit_available]),
            }
    if "RESOURCE_EXHAUSTED" in message:
        return {"needed_bytes": None, "available_bytes": None, "message": message.splitlines()[0]}
    return None


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    from mtf import config as config_lib
    from mtf.plan.topology import devices_of

    target = parse_target(request["target"])
    devices = devices_of(target)
    job = config_lib.build(config_lib.load_json(request["config"], "the request"))
    network = None
    if request["network"] is not None:
        other = config_lib.build(config_lib.load_json(request["network"], "the request"))
        network = other.model.network
    from mtf.plan.programs import program_of

    program = program_of(job, request["program"], network, devices)
    least = sum(program.parts.values()) - program.parts.get("gradients", 0) // 2
    if least > target.memory:
        return {"needed_bytes": least, "available_bytes": target.memory, "is_least": True}
    started = time.perf_counter()
    lowered = program.lower()
    traced = time.perf_counter()
    compiled = lowered.compile()
    seconds = {"trace": traced - started, "compile": time.perf_counter() - traced}
    text = compiled.as_text()
    if request["hlo"] is not None:
        Path(request["hlo"]).write_text(text, encoding="utf-8")
    found = _measured(compiled, text, program.partitioner.mesh, target)
    return {
        "kind": program.kind,
        "mesh": dict(program.partitioner.mesh.shape),
        "parts": dict(program.parts),
        "formula_flops": program.formula_flops,
        "tokens": program.tokens,
        "steps": program.steps,
        "seconds": seconds,
        **found,
    }


def _measured(compiled: Any, text: str, mesh: Any, target: Target) -> dict[str, Any]:
    """Returns what a compiled program needs and does on each device."""
    from mtf.plan import hlo, work

    sizes = compiled.memory_analysis()
    total = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
    total += sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    # On CPUs, the compiler's peak leaves out temporaries.
    peak = getattr(sizes, "peak_memory_in_bytes", 0)
    if target.platform == "cpu" or peak < sizes.argument_size_in_bytes:
        peak = total
    module = hlo.parse(text)
    # On TPUs, the links of a slice reach all its hosts.
    host_of = [
        device.process_index if target.platform == "cuda" else 0 for device in mesh.devices.flat
    ]
    analysis = compiled.cost_analysis() or {}
    return {
        "peak_bytes": peak,
        "argument_bytes": sizes.argument_size_in_bytes,
        "temporary_bytes": sizes.temp_size_in_bytes,
        "flops": work.flops(module),
        "uncorrected_flops": analysis.get("flops"),
        "moved_bytes": work.moved_bytes(module),
        "collectives": [
            {
                **dataclasses.asdict(each),
                "sent_bytes": each.sent_bytes,
                "network_bytes": each.network_bytes,
            }
            for each in work.collectives(module, mesh.shape, host_of)
        ],
    }


if __name__ == "__main__":
    main(sys.argv[1])
