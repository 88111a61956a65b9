"""A step on CPUs takes its temporary memory from the one before, without page faults."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests import small

# Their attention weights alone take 64 MiB: 256 rows × 2 heads × 128 × 128 × 2 layers.
SETTINGS = {
    "batch_size": 256,
    "data__task_feature_lengths__inputs": 128,
    "data__task_feature_lengths__targets": 32,
    "train_steps": 21,
    "checkpoint__save__period": None,
}


def faults(pid: int) -> int:
    """The page faults of a process so far that needed no disk (proc(5): minflt)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[7])


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the options are those of glibc")
def test_steps_of_a_run(tmp_path: Path) -> None:
    text = small.write_text(tmp_path, num_lines=4000)
    arguments = small.arguments(text, model_dir="run", **SETTINGS)
    with small.start(arguments, tmp_path, JAX_PLATFORMS="cpu") as process:
        small.read_until(process.stdout, "step 8/")  # The heap has grown to its final size.
        before = faults(process.pid)
        small.read_until(process.stdout, "step 20/")
        after = faults(process.pid)
        process.communicate()
    assert process.returncode == 0
    # A step that maps its memory anew has at least 16,384: one for each 4 KiB of 64 MiB. Here, it
    # would have 63,000, so the heap may still grow once in the 12 steps.
    assert (after - before) / 12 < 8000
