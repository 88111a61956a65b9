"""What tests share: where the reference data lies, if it is there at all."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
GOLDEN = SHARED / "golden" / "t5x"

needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="reference data (../shared) is not beside this checkout"
)
