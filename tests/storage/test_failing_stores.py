"""Stores that fail in the middle of a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mtf.storage import as_path
from tests import small, stores

SETTINGS = {"checkpoint.save.period": 5, "trainer.eval_period": 10}


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 503])
def test_a_run_says_what_was_saved_and_continues_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The store refuses requests, or answers that it is not available, which is tried again."""
    text = small.write_text(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with stores.gcs("bucket") as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        run_dir = "gs://bucket/run"
        endless = small.arguments(text, **SETTINGS, train_steps=100_000, model_dir=run_dir)
        with small.start(endless, tmp_path) as process:
            small.read_until(process.stdout, "step 8/")
            stores.REFUSES.append(status)
            try:
                out, err = process.communicate(timeout=400)
            finally:
                stores.REFUSES.clear()
                process.kill()
        assert process.returncode == 1, out + err
        (message,) = [line for line in err.splitlines() if line.startswith("error: ")]
        assert "Traceback" not in err
        assert f"{run_dir} cannot be written to: " in message
        assert "Last complete checkpoint: checkpoint_" in message
        assert message.endswith(f"resume with: python -m mtf.run --from {run_dir}")
        last_step = int(re.search(r"checkpoint_(\d+)", message)[1]) + 5
        small.run_process(["--from", run_dir, "--set", f"train_steps={last_step}"], tmp_path)
        local = small.arguments(text, **SETTINGS, train_steps=last_step, model_dir="local")
        small.run_process(local, tmp_path)
        small.assert_same_end(as_path(run_dir), tmp_path / "local", last_step)
