"""LoRA adapters in checkpoints: merged as they are read, or exported for PEFT."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from conversion import Checkpoint, ConversionError
from conversion.adapters import merged
from conversion.peft_writer import write_adapters
from conversion.tensor import array_tensor
from mtf.models import LoraConfig, t5
from mtf.models.trees import flat_names
from tests import made_up

NETWORK = made_up.network(head_dim=6, num_encoder_layers=2, mlp_dim=10)


def checkpoint(lora: LoraConfig | None, *, scale: float | None = None) -> Checkpoint:
    """A checkpoint of random values."""
    shapes = flat_names(t5.param_shapes(dataclasses.replace(NETWORK, lora=lora)))
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for name, shape in shapes.items():
        value = rng.normal(size=shape.shape).astype(np.float32)
        if name.endswith("/lora_scale"):
            value = np.float32(lora.alpha / lora.rank if lora and scale is None else scale)
        arrays[f"target/{name}"] = np.asarray(value)
    arrays["state/step"] = np.int32(7)
    tensors = {name: array_tensor(name, np.asarray(x)) for name, x in arrays.items()}
    return Checkpoint(Path("runs/lora/checkpoints/checkpoint_7"), "orbax", 7, tensors)


def test_kernels_are_read_with_their_adapters() -> None:
    opened = checkpoint(LoraConfig(rank=3, alpha=6.0, targets=(".*",)))
    found = merged(opened)
    assert not any("lora" in name for name in found.tensors)
    assert found.num_merged == 2 * 7 + 11
    root = "target/encoder/layers_1/attention/out"
    kernel, a, b = (opened.tensors[f"{root}/{x}"].read() for x in ("kernel", "lora_a", "lora_b"))
    expected = kernel.astype(np.float64) + 2.0 * a.astype(np.float64) @ b.astype(np.float64)
    tensor = found.tensors[f"{root}/kernel"]
    assert tensor.shape == (12, 8) and tensor.dtype == np.float32
    np.testing.assert_allclose(tensor.read(), expected, rtol=1e-5, atol=1e-5)
    part = tensor.read((slice(2, 5), slice(1, 8)))
    np.testing.assert_allclose(part, expected[2:5, 1:8], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(tensor.read((slice(4),)), expected[:4], rtol=1e-5, atol=1e-5)


def test_averages_and_optimizer_states_of_adapters_are_left_out() -> None:
    opened = checkpoint(LoraConfig())
    expected = merged(opened)
    adapter = "encoder/layers_0/attention/query/lora_a"
    value = opened.tensors[f"target/{adapter}"]
    for name in (f"state/ema/{adapter}", f"state/param_states/0/mu/{adapter}"):
        opened.tensors[name] = dataclasses.replace(value, name=name)
    found = merged(opened)
    assert found.tensors.keys() == expected.tensors.keys()
    assert found.num_merged == expected.num_merged


def test_a_checkpoint_without_adapters_is_unchanged() -> None:
    opened = checkpoint(None)
    assert merged(opened) is opened


def test_a_missing_part_is_named() -> None:
    opened = checkpoint(LoraConfig())
    del opened.tensors["target/decoder/layers_0/self_attention/query/lora_b"]
    with pytest.raises(ConversionError, match="decoder/layers_0/self_attention/query lacks lora_b"):
        merged(opened)


def test_adapters_as_peft_has_them(tmp_path: Path) -> None:
    opened = checkpoint(LoraConfig(rank=3, alpha=6.0))
    written = write_adapters(opened, tmp_path, base="google/t5-v1_1-small", dropout_rate=0.1)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (3, 6, 0.1)
    assert config["target_modules"] == ["q", "v"]
    weights = load_file(tmp_path / "adapter_model.safetensors")
    # Two encoder layers and, twice in a decoder layer, two modules with two matrices.
    assert len(weights) == (2 + 2) * 2 * 2 and weights.keys() == written.keys()
    own = "target/decoder/layers_0/encoder_decoder_attention/value/lora_a"
    peft = "base_model.model.decoder.block.0.layer.1.EncDecAttention.v.lora_A.weight"
    np.testing.assert_array_equal(weights[peft], opened.tensors[own].read().T)


def test_targets_that_share_their_last_name_with_others_have_whole_names(tmp_path: Path) -> None:
    write_adapters(
        checkpoint(LoraConfig(targets=("decoder/self_attention/query",))),
        tmp_path,
        base=None,
        dropout_rate=0.0,
    )
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["decoder.block.0.layer.0.SelfAttention.q"]


def test_a_checkpoint_without_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"has no LoRA adapters.*--to hf"):
        write_adapters(checkpoint(None), tmp_path, base=None, dropout_rate=0.0)
