"""Several processes or devices train as one does, and a run may change their number."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests import small
from tests.conftest import with_devices
from tests.launch import test_local
from tests.small import python


@pytest.mark.slow
def test_two_processes_then_one_read_one_stream(tmp_path: Path) -> None:
    """Both read the stream; tests/launch/test_local.py does the same with files."""
    pytest.importorskip("datasets")
    text = tmp_path / "text.txt"
    text.write_text("".join(f"Line {i} {'word ' * (i % 30)}\n" for i in range(500)))
    settings = {
        "data": "@mtf.data.HubStreamConfig(dataset=text, num_streams=1, window_documents=64, "
        "vocabulary=@mtf.data.ByteVocabulary(extra_ids=125), "
        "task_feature_lengths={'inputs': 64, 'targets': 24})",
        "data.data_files": {"train": str(text), "validation": str(text)},
        "trainer.eval_period": 4,
        "checkpoint.save.period": 4,
        "partitioner.fsdp": 2,
    }

    def train(name: str, train_steps: int, processes: int) -> str:
        command = small.arguments(text, **settings, train_steps=train_steps, model_dir=name)
        return test_local.run(tmp_path, processes, 4 // processes, *command)

    train("one", 8, 1)
    train("both", 4, 2)
    assert "resuming from step 4" in train("both", 8, 1)
    for name, steps in (("train", 8), ("training_eval/validation", 2)):
        expected, ours = (small.read_metrics(tmp_path / each, name) for each in ("one", "both"))
        assert [line["step"] for line in ours] == [line["step"] for line in expected]
        assert len(ours) == steps
        for key in ("loss", "accuracy", "non_padding_fraction/overall"):
            np.testing.assert_allclose(
                [line[key] for line in ours], [line[key] for line in expected], rtol=1e-5
            )


ONE, EIGHT = "(1, 1, 1)", "(2, 2, 2)"


@pytest.mark.slow
def test_no_mesh_and_no_microbatches_change_anything() -> None:
    eight = {"XLA_FLAGS": with_devices(8), "JAX_PLATFORMS": "cpu"}
    done = python("-m", "tests.training.mesh_losses", **eight)
    found = json.loads(done.stdout)
    # Losses of later steps also depend on the gradients and the optimizer's state.
    scanned = found[f"{ONE},1,True,None"]
    assert len(set(scanned)) == 3
    np.testing.assert_allclose(found[f"{EIGHT},1,True,None"], scanned, rtol=1e-5)
    expected = found[f"{ONE},1,False,None"]
    others = [key for key in found if key.endswith(",1,False,None")]
    assert len(others) == 11  # one device, and the ten meshes of eight
    for key in [*others, "(4, 1, 2),4,False,None"]:
        np.testing.assert_allclose(found[key], expected, rtol=1e-5, err_msg=key)
    for factor in ("None", "NUM_REAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"):
        expected = found[f"{ONE},1,False,{factor}"]
        for way in (f"{ONE},2", f"{ONE},4", f"{EIGHT},4"):
            key = f"{way},False,{factor}"
            np.testing.assert_allclose(found[key], expected, rtol=1e-5, err_msg=key)
