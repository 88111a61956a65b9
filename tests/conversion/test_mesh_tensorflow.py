"""Mesh TensorFlow's checkpoints are read without TensorFlow, under T5X's names."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conversion import ConversionError, IncompleteCheckpoint, open_checkpoint
from tests.conversion import writers
from tests.conversion.writers import mesh

PARAMETERS = writers.random_parameters(num_encoder_layers=3, num_decoder_layers=11)


def refused(path: Path, error: type[ConversionError] = IncompleteCheckpoint) -> str:
    with pytest.raises(error) as caught:
        for tensor in open_checkpoint(path).tensors.values():
            tensor.read()
    return str(caught.value)


@pytest.mark.parametrize("num_files", [1, 3])
@pytest.mark.parametrize("gated", [True, False])
def test_every_name(gated: bool, num_files: int, tmp_path: Path) -> None:
    parameters = writers.random_parameters(num_encoder_layers=12, gated=gated, tied=not gated)
    prefix = writers.write_bundle(tmp_path, mesh(parameters, 1_000_000), 1_000_000, num_files)
    assert (tmp_path / "model.ckpt-1000000.index").is_file()
    for path in (tmp_path, prefix, tmp_path / "model.ckpt-1000000.index"):
        checkpoint = open_checkpoint(path)
        assert (checkpoint.layout, checkpoint.step) == ("mesh-tensorflow", 1_000_000)
        assert checkpoint.tensors["state/step"].read() == 1_000_000
        writers.assert_holds(checkpoint, parameters)


def test_names_of_later_versions(tmp_path: Path) -> None:
    arrays = {
        name.replace("final_layer_norm", "rms_norm").replace("layer_norm", "rms_norm"): array
        for name, array in mesh(PARAMETERS).items()
    }
    assert open_checkpoint(writers.write_bundle(tmp_path, arrays)).parameters().keys() == (
        PARAMETERS.keys()
    )


def test_a_bias_in_every_layer_stays_one_per_layer(tmp_path: Path) -> None:
    bias = "decoder/block_{:03d}/layer_000/SelfAttention/relative_attention_bias"
    arrays = mesh(PARAMETERS) | {bias.format(i): np.full((3, 32), i, np.float32) for i in range(11)}
    found = open_checkpoint(writers.write_bundle(tmp_path, arrays)).parameters()
    for i in range(11):
        assert (found[f"decoder/layers_{i}/relpos_bias/rel_embedding"].read() == i).all()
    assert "decoder/relpos_bias/rel_embedding" not in found


def test_slots_of_adafactor(tmp_path: Path) -> None:
    wi = "encoder/block_001/layer_001/DenseReluDense/wi_0/kernel"
    norm = "encoder/final_layer_norm/scale"
    rng = np.random.default_rng(0)
    slots = {
        f"{wi}_slot_vr": rng.random(32, np.float32),
        f"{wi}_slot_vc": rng.random(48, np.float32),
        f"{norm}_slot_v": rng.random(32, np.float32),
    }
    tensors = open_checkpoint(writers.write_bundle(tmp_path, mesh(PARAMETERS) | slots)).tensors
    found = {
        name.removeprefix("state/param_states/encoder/"): tensor.read()
        for name, tensor in tensors.items()
        if name.startswith("state/param_states/")
    }
    zero = np.zeros(1, np.float32)
    expected = {
        "layers_1/mlp/wi_0/kernel/v_row": slots[f"{wi}_slot_vr"],
        "layers_1/mlp/wi_0/kernel/v_col": slots[f"{wi}_slot_vc"],
        "layers_1/mlp/wi_0/kernel/v": zero,
        "layers_1/mlp/wi_0/kernel/m": zero,
        "encoder_norm/scale/v": slots[f"{norm}_slot_v"],
        "encoder_norm/scale/v_row": zero,
        "encoder_norm/scale/v_col": zero,
        "encoder_norm/scale/m": zero,
    }
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_parts_and_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A few rows at a time, as of the embedding of a large model.
    monkeypatch.setattr("conversion.tensor_bundle.BYTES_AT_ONCE", 1000)
    arrays = {name: x.astype(ml_dtypes.bfloat16) for name, x in mesh(PARAMETERS).items()}
    path = writers.write_bundle(tmp_path, {**arrays, "global_step": np.asarray(7, np.int64)})
    embedding = arrays["shared/embedding"]
    parts: list[Any] = [..., (slice(100, 300),), (slice(5, 7), slice(3, 20)), (slice(380, 999),)]
    for index in parts:
        part = open_checkpoint(path).parameters()["token_embedder/embedding"].read(index)
        assert part.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(part, embedding[index])


def test_the_step_is_chosen(tmp_path: Path) -> None:
    for step in (900, 1000, 800):  # `checkpoint` names the last one.
        writers.write_bundle(tmp_path, mesh(PARAMETERS), step)
    assert open_checkpoint(tmp_path).step == 800
    assert open_checkpoint(tmp_path, 900).step == 900
    with pytest.raises(ConversionError, match="no checkpoint of step 950; it has 800, 900, 1000"):
        open_checkpoint(tmp_path, 950)
    with pytest.raises(ConversionError, match="is the checkpoint of step 1000, but step 900"):
        open_checkpoint(tmp_path / "model.ckpt-1000", 900)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "gs://b/m/model.ckpt-900"\n')
    assert open_checkpoint(tmp_path).step == 900
    (tmp_path / "checkpoint").unlink()
    assert open_checkpoint(tmp_path).step == 1000


def test_other_variables_are_refused_by_name(tmp_path: Path) -> None:
    arrays = mesh(PARAMETERS) | {"encoder/block_000/layer_000/SelfAttention/kv": np.ones((2, 3))}
    arrays = {name: x.astype(np.float32) for name, x in arrays.items()}
    message = refused(writers.write_bundle(tmp_path, arrays), ConversionError)
    assert "encoder/block_000/layer_000/SelfAttention/kv (2, 3)" in message


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    writers.write_bundle(whole, mesh(PARAMETERS), num_files=2)
    data, index = "model.ckpt-7.data-00001-of-00002", "model.ckpt-7.index"

    def changed(file: str, change: Any) -> Path:
        shutil.rmtree(tmp_path / "changed", ignore_errors=True)
        shutil.copytree(whole, tmp_path / "changed")
        path = tmp_path / "changed" / file
        path.write_bytes(change(path.read_bytes()))
        return path

    def flipped(content: bytes) -> bytes:
        middle = len(content) // 2
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]

    path = changed(data, flipped)
    message = refused(path.parent)
    assert str(path) in message and "the CRC of " in message
    path = changed(data, lambda content: content[:-10])
    assert f"{path} is truncated: " in refused(path.parent)
    path = changed(index, flipped)
    assert f"{path} is truncated or damaged: the CRC" in refused(path.parent)
    path = changed(index, lambda content: content[:-10])
    assert f"{path} is truncated or damaged: " in refused(path.parent)
    path = changed(data, lambda content: content)
    path.unlink()
    assert f"has no file {data}" in refused(path.parent)


def test_a_part_of_a_damaged_tensor_is_refused(tmp_path: Path) -> None:
    prefix = writers.write_bundle(tmp_path, {"shared/embedding": np.ones((20, 4), np.float32)})
    file = prefix.with_name("model.ckpt-7.data-00000-of-00001")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    embedding = open_checkpoint(prefix).parameters()["token_embedder/embedding"]
    with pytest.raises(IncompleteCheckpoint, match="the CRC of shared/embedding is wrong"):
        embedding.read((slice(0, 2),))
