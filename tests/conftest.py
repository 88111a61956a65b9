"""What tests share: where the reference data lies, if it is there at all, and what is compiled."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import hypothesis
import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
GOLDEN = SHARED / "golden" / "t5x"

needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="reference data (../shared) is not beside this checkout"
)


# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("mtf", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("mtf")

# Compiling is most of what tests do, so it is done quickly, and once for all processes: pytest's
# own and those that tests start. Set before anything imports jax. XLA's optimization of what is
# compiled alone changes no promise; `XLA_FLAGS= pytest` tests what users compile, as CI does of
# the slow tests.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _compiled = tempfile.TemporaryDirectory(prefix="mtf-compiled-")
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": _compiled.name,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


@pytest.fixture(scope="session", autouse=True)
def _verify_only_if_asked() -> None:
    """Tests that export for another purpose do not compare the logits."""
    from mtf import verification

    verification.VERIFY_BY_DEFAULT = False


def with_devices(number: int) -> str:
    """XLA_FLAGS of a process that sees so many CPU devices, otherwise those of this one."""
    return f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={number}".strip()
