"""The average of the parameters: its values, and what is evaluated, resumed and exported."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import conversion
import mtf
from mtf import convert
from mtf.checkpoints.finite import flat_names
from mtf.training import EmaConfig
from tests import small
from tests.training.test_not_finite import make_batch, make_trainer


def test_the_average_follows_its_definition() -> None:
    trainer = make_trainer(ema=EmaConfig(decay=0.7), frozen=("encoder/.*",))
    state = trainer.init_state()
    expected = jax.device_get(flat_names(state.params))
    for _ in range(4):
        state, _ = trainer.train_step(state, make_batch())
        for name, value in jax.device_get(flat_names(state.params)).items():
            expected[name] = 0.7 * expected[name] + 0.3 * value
    averages = jax.device_get(flat_names(state.ema))
    assert averages and all(not name.startswith("encoder/") for name in averages)
    assert make_trainer(ema=EmaConfig(evaluate=False)).eval_params(state) is state.params
    found = jax.device_get(flat_names(trainer.eval_params(state)))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_a_run_resumes_its_average_and_exports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small.write_text(tmp_path)
    small.run(small.arguments("text.txt", train_steps=4, model_dir="base"), tmp_path)
    settings = {
        "trainer.ema": "@mtf.training.EmaConfig(decay=0.75)",
        "checkpoint.restore": '@mtf.checkpoints.RestoreCheckpointConfig(path="base")',
        "checkpoint.save.period": 1,
        "checkpoint.save.keep": None,
        "trainer.eval_period": 2,
    }

    small.assert_resumes(tmp_path, 6, 8, **settings)

    # The average starts from the base's parameters, and exports have it in their place.
    def read(path: Path) -> np.ndarray:
        opened = conversion.open_checkpoint(path)
        return opened.tensors["target/encoder/layers_0/mlp/wo/kernel"].read()

    expected = read(tmp_path / "base")
    for step in (5, 6, 7, 8):
        parameters = read(tmp_path / "whole" / "checkpoints" / f"checkpoint_{step}")
        expected = 0.75 * expected + 0.25 * parameters
    source, out = str(tmp_path / "whole"), str(tmp_path / "averaged")
    assert convert.main([source, out, "--to", "mtf", "--ema"]) == 0
    np.testing.assert_allclose(read(tmp_path / "averaged"), expected, rtol=1e-5, atol=1e-6)
    assert mtf.load(source, ema=True).score("one two", "three") != pytest.approx(
        mtf.load(source).score("one two", "three"), rel=1e-6
    )
    assert convert.main([str(tmp_path / "base"), out + "2", "--to", "mtf", "--ema"]) == 2
    assert "has no average of the parameters" in capsys.readouterr().err


@pytest.mark.slow
def test_the_average_of_adapters(tmp_path: Path) -> None:
    small.write_text(tmp_path)
    small.run(small.arguments("text.txt", train_steps=4, model_dir="base"), tmp_path)
    settings = {
        "model.network.lora": "@mtf.models.LoraConfig(rank=2)",
        "trainer.ema": "@mtf.training.EmaConfig(decay=0.75)",
        "checkpoint.restore": '@mtf.checkpoints.RestoreCheckpointConfig(path="base")',
        "checkpoint.save.period": 4,
        "model_dir": "run",
    }
    small.run(small.arguments("text.txt", **settings, train_steps=8), tmp_path)
    small.run(["--from", "run", "--set", "train_steps=12"], tmp_path)
    opened = conversion.open_checkpoint(tmp_path / "run", 12, ema=True, merge_adapters=False)
    root = "target/decoder/layers_0/self_attention/query"
    names = ("kernel", "lora_a", "lora_b", "lora_scale")
    kernel, a, b, scale = (opened.tensors[f"{root}/{name}"].read() for name in names)
    merged = conversion.open_checkpoint(tmp_path / "run", 12, ema=True).tensors[f"{root}/kernel"]
    np.testing.assert_allclose(merged.read(), kernel + scale * (a @ b), rtol=1e-5, atol=1e-6)
    last = conversion.open_checkpoint(tmp_path / "run", 12).tensors[f"{root}/kernel"]
    assert np.abs(last.read() - merged.read()).max() > 1e-7
