"""A run of gpu.py: its options, time, results and workers."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_workers import Worker


class Run:
    """The options of a run, its time, its results and its workers."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.deadline = time.monotonic() + args.minutes * 60
        self.limit = args.build_minutes * 60
        self.machine: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []

    def record(self, **row: Any) -> None:
        """Appends a result to the file, and prints it."""
        self.rows.append(row)
        with Path(self.args.out).open("a") as out:
            print(json.dumps(row), file=out)
        print(json.dumps(row), flush=True)

    def worker(self, side: str, share: float | None = None) -> Worker:
        """Returns a worker with a share of the GPU's memory."""
        share = self.args.share if share is None else share
        environment = {
            "XLA_PYTHON_CLIENT_MEM_FRACTION": str(share),
            "GPU_BENCHMARK_SHARE": str(share),
            "TOKENIZERS_PARALLELISM": "false",
        }
        script = Path(__file__).with_name(f"gpu_{side}.py")
        return Worker(script, environment, self.deadline)

    def timed(
        self, built: Mapping[str, tuple[Worker, Mapping[str, Any]]], calls: int | None = None
    ) -> dict[str, Any]:
        """Times what was built, a block of each side in turn; returns the figures of each side.

        `built` has the worker of each side, and its answer to the request to build. A block has at
        most `calls` calls, by default those of the options.
        """
        most = calls or self.args.calls
        last = {side: about["seconds"] for side, (_, about) in built.items()}
        blocks: dict[str, list[float]] = {side: [] for side in built}
        for _ in range(self.args.blocks):
            for side, (worker, about) in built.items():
                wanted = int(self.args.block_seconds / max(last[side], 1e-9))
                request = {"calls": max(1, min(most, wanted)), "name": about.get("name", "")}
                answer = worker.ask("block", **request)
                last[side] = answer["seconds"]
                blocks[side].append(last[side])
        return {
            side: {**about, "seconds": statistics.median(blocks[side]), "blocks": blocks[side]}
            for side, (_, about) in built.items()
        }
