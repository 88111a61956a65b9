"""Parameters that are not trained, and averages of those that are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import conversion
import mtf
from mtf import convert
from mtf.base.errors import UserError
from mtf.models import LoraConfig
from mtf.models.settings import ModelConfig
from mtf.models.trees import flat_names
from mtf.training import AdafactorConfig, AdamWConfig, EmaConfig, ScheduleConfig
from mtf.training.sizes import least_bytes
from mtf.training.trainer import Trainer
from tests import small
from tests.training.test_not_finite import NETWORK, make_batch, make_trainer

ADAMW = AdamWConfig(ScheduleConfig("constant", 0.1), weight_decay_rate=0.1)
ADAFACTOR = AdafactorConfig(ScheduleConfig("constant", 0.1))


def partly_trained(
    *frozen: str, optimizer: Any = ADAMW, lora: LoraConfig | None = None, **network: Any
) -> Trainer:
    model = ModelConfig(dataclasses.replace(NETWORK, lora=lora, **network))
    trainer = make_trainer(frozen=frozen, num_microbatches=2)
    return dataclasses.replace(trainer, model=model, optimizer=optimizer)


def steps(trainer: Trainer, number: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the parameters before and after steps, by name."""
    state = trainer.init_state()
    before = jax.device_get(flat_names(state.params))
    for _ in range(number):
        state, _ = trainer.train_step(state, make_batch())
    return before, jax.device_get(flat_names(state.params))


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("optimizer", [ADAMW, ADAFACTOR], ids=["adamw", "adafactor"])
def test_frozen_parameters_keep_their_bits(optimizer: Any, scan_layers: bool) -> None:
    trainer = partly_trained(
        "encoder/.*", "token_embedder/.*", optimizer=optimizer, scan_layers=scan_layers
    )
    before, after = steps(trainer, 3)
    for name in before:
        is_frozen = name.startswith(("encoder/", "token_embedder/"))
        assert np.array_equal(before[name], after[name]) == is_frozen, name
    slots = flat_names(trainer.state_shapes.param_states)
    assert slots and all(name.startswith("decoder/") for name in slots)


@pytest.mark.slow
def test_others_are_trained_as_if_nothing_was_frozen() -> None:
    # The first step of AdamW does not depend on other parameters' updates.
    _, free = steps(partly_trained(), 1)
    _, frozen = steps(partly_trained(".*/mlp/.*"), 1)
    for name in free:
        if "/mlp/" not in name:
            np.testing.assert_allclose(frozen[name], free[name], rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("scan_layers", [pytest.param(False, marks=pytest.mark.slow), True])
def test_with_adapters_only_these_are_trained(scan_layers: bool) -> None:
    trainer = partly_trained(lora=LoraConfig(rank=2), scan_layers=scan_layers)
    before, after = steps(trainer, 3)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith(("/lora_a", "/lora_b"))}
    slots = flat_names(trainer.state_shapes.param_states)
    assert {name.rpartition("/")[0] for name in slots} == changed
    # Two slots of AdamW per parameter; (8 + 8) · 2 parameters for each of six kernels.
    needed = least_bytes(trainer, {"inputs": 4, "targets": 4}, 2)
    assert needed["optimizer state"] == 2 * 4 * 6 * 2 * (8 + 8)
    assert needed["gradients"] == 4 * 6 * 2 * (8 + 8)


@pytest.mark.parametrize(
    ("patterns", "settings", "said"),
    [
        (("encoder",), {}, "no parameter matches 'encoder'.* Did you mean 'encoder/.\\*'"),
        (("(",), {}, r"frozen: '\(' is not a valid regular expression"),
        ((".*",), {}, "freezes all parameters"),
        (
            (".*/layers_0/.*",),
            {"scan_layers": True, "num_encoder_layers": 2},
            "matches encoder/layers_0/.* but not encoder/layers_1/.*scan_layers=False",
        ),
    ],
)
def test_bad_patterns(patterns: tuple[str, ...], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        partly_trained(*patterns, **settings).state_shapes  # noqa: B018


@pytest.mark.slow
def test_a_run_with_adapters_resumes_and_is_exported_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small.write_text(tmp_path)
    small.run(small.arguments("text.txt", train_steps=4, model_dir="base"), tmp_path)
    settings = {
        "model.network.lora": "@mtf.models.LoraConfig(rank=2,dropout_rate=0.2)",
        "checkpoint.restore": '@mtf.checkpoints.RestoreCheckpointConfig(path="base")',
        "checkpoint.save.period": 4,
        "trainer.eval_period": 4,
    }

    # Six kernels of 32 × 32 have adapters of 32 × 2 and 2 × 32.
    assert " (768 trained) on " in small.assert_resumes(tmp_path, 8, 12, **settings)

    # What the export holds is the base and the product of the adapters.
    own = small.read_checkpoint(tmp_path / "whole", 12)
    base = small.read_checkpoint(tmp_path / "base", 4)
    assert own.keys() == {name for name in base if name.startswith(("target/", "state/step"))}
    changed = {name for name, tensor in own.items() if tensor != base.get(name)}
    assert changed - {"state/step"} == {
        f"target/{side}/layers_0/{attention}/{name}/kernel"
        for side, attention in (
            ("encoder", "attention"),
            ("decoder", "self_attention"),
            ("decoder", "encoder_decoder_attention"),
        )
        for name in ("query", "value")
    }
    whole, exported = tmp_path / "whole", tmp_path / "hf"
    assert convert.main([str(whole), str(exported), "--to", "hf", "--no-verify"]) == 0
    assert "LoRA adapters: merged into 6 kernels" in capsys.readouterr().out
    scores = [mtf.load(path).score("one two", "three") for path in (whole, exported)]
    np.testing.assert_allclose(*scores, rtol=1e-5)


@pytest.mark.slow
def test_t5x_gets_no_optimizer_state_of_a_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small.write_text(tmp_path)
    settings = {"trainer.frozen": '("encoder/.*",)', "train_steps": 2, "model_dir": "run"}
    small.run(small.arguments("text.txt", **settings), tmp_path)
    source = str(tmp_path / "run")
    assert convert.main([source, str(tmp_path / "t5x"), "--to", "t5x"]) == 0
    assert "Optimizer state: dropped" in capsys.readouterr().out
    assert convert.main([source, str(tmp_path / "mtf"), "--to", "mtf"]) == 0
    assert "Optimizer state: kept" in capsys.readouterr().out
    options = ["--to", "t5x", "--optimizer", "keep"]
    assert convert.main([source, str(tmp_path / "kept"), *options]) == 2
    assert "trained parameters only, but T5X needs the state of all" in capsys.readouterr().err


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
