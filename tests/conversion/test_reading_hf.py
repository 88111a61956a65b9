"""Hugging Face directories are read as what `transformers` 5 computes with them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from conversion import ConversionError, IncompleteCheckpoint, infer_architecture, open_checkpoint
from mtf import convert
from tests.conversion import writers
from tests.conversion.test_damage import RunsCode

SIZES = {"vocab_size": 384, "emb_dim": 32, "num_encoder_layers": 3, "num_decoder_layers": 2}
Array = np.ndarray[Any, Any]


def export(folder: Path, *options: str, **sizes: Any) -> tuple[dict[str, Array], Path]:
    """Random parameters under T5X's names, and the Hugging Face directory made of them."""
    parameters = writers.random_parameters(**{**SIZES, **sizes}, seed=1)
    source = writers.write_t5x(folder, parameters)
    out = folder / "hf"
    assert convert.main([str(source), str(out), "--to", "hf", *options]) == 0
    (out / "checksums.json").unlink()  # as in a directory that transformers wrote
    return parameters, out


def change_config(directory: Path, **values: Any) -> None:
    file = directory / "config.json"
    config = json.loads(file.read_text()) | values
    file.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))


def change_tensors(directory: Path, change: Callable[[dict[str, Array]], object]) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file({name: np.ascontiguousarray(t) for name, t in tensors.items()}, file)


def refused(directory: Path, error: type[ConversionError] = ConversionError) -> str:
    with pytest.raises(error) as caught:
        open_checkpoint(directory)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ([], {}),
        ([], {"gated": False, "tied": True}),
        (["--max-shard-size", "20KB"], {}),
        (["--model-type", "mt5"], {}),
        (["--model-type", "byt5"], {"num_encoder_layers": 6}),
        ([], {"num_encoder_layers": 1, "num_decoder_layers": 4}),
    ],
    ids=["t5_1_1", "t5_1_0", "sharded", "mt5", "byt5", "deeper_decoder"],
)
def test_what_was_exported_comes_back_bit_for_bit(
    options: list[str], sizes: dict[str, Any], tmp_path: Path
) -> None:
    parameters, directory = export(tmp_path, *options, **sizes)
    checkpoint = open_checkpoint(directory)
    assert (checkpoint.layout, checkpoint.step) == ("huggingface", None)
    assert infer_architecture(checkpoint) == infer_architecture(open_checkpoint(tmp_path))
    writers.assert_holds(checkpoint, parameters)
    tensors, part = checkpoint.parameters(), (slice(1, 3),)
    for name, expected in parameters.items():
        np.testing.assert_array_equal(tensors[name].read(part), expected[part], err_msg=name)
    part = (slice(4, 9), slice(2, 7))
    kernel = "decoder/layers_1/mlp/wo/kernel"
    np.testing.assert_array_equal(tensors[kernel].read(part), parameters[kernel][part])


def test_what_only_config_json_says_is_kept(tmp_path: Path) -> None:
    _, directory = export(tmp_path)
    change_config(directory, feed_forward_proj="gated-silu", relative_attention_max_distance=64)
    change_config(directory, dropout_rate=0.25)
    checkpoint = open_checkpoint(directory)
    assert checkpoint.described == {
        "mlp_activations": ("silu", "linear"),
        "dropout_rate": 0.25,
        "relative_attention_max_distance": 64,
    }
    assert infer_architecture(checkpoint).mlp_activations == ("silu", "linear")


def head(directory: Path) -> Array | None:
    found = open_checkpoint(directory).parameters().get("decoder/logits_dense/kernel")
    return None if found is None else found.read()


def test_projection_and_scaling_are_those_of_transformers_5(tmp_path: Path) -> None:
    parameters, directory = export(tmp_path)
    kernel = parameters["decoder/logits_dense/kernel"]
    embedding = parameters["token_embedder/embedding"]
    scaled = (kernel * np.float32(32**-0.5)).astype(np.float32)
    # T5 with a projection of its own: `scale_decoder_outputs` decides, then `tie_word_embeddings`.
    for scale, tie, expected in [
        (False, True, kernel),
        (True, False, scaled),
        ("absent", False, kernel),
        ("absent", True, scaled),
        ("absent", "absent", scaled),
    ]:
        change_config(directory, scale_decoder_outputs=scale, tie_word_embeddings=tie)
        np.testing.assert_array_equal(head(directory), expected)
    # A copy of the embedding is T5 1.0's tied projection.
    change_tensors(directory, lambda t: t.update({"lm_head.weight": t["shared.weight"]}))
    assert head(directory) is None
    change_tensors(directory, lambda t: t.pop("lm_head.weight"))
    assert head(directory) is None
    # Without scaling, T5X has no tied projection: the embedding becomes one of its own.
    change_config(directory, scale_decoder_outputs=False)
    np.testing.assert_array_equal(head(directory), embedding.T)
    change_config(directory, model_type="mt5", scale_decoder_outputs=True)
    np.testing.assert_array_equal(head(directory), embedding.T)


def test_copies_of_the_embedding_are_read_once(tmp_path: Path) -> None:
    parameters, directory = export(tmp_path)
    side = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    bias = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    unused = np.zeros((32, 3), np.float32)
    change_tensors(
        directory, lambda t: t.update(dict.fromkeys(side, t["shared.weight"]) | {bias: unused})
    )
    assert open_checkpoint(directory).parameters().keys() == parameters.keys()
    change_tensors(directory, lambda t: t.pop("shared.weight"))
    read = open_checkpoint(directory).parameters()["token_embedder/embedding"].read()
    np.testing.assert_array_equal(read, parameters["token_embedder/embedding"])
    change_tensors(directory, lambda t: t.update({side[1]: t[side[0]] + 1}))
    assert "decoder.embed_tokens.weight and shared.weight differ" in refused(directory)


def test_tensors_that_config_json_does_not_describe_are_refused(tmp_path: Path) -> None:
    _, directory = export(tmp_path)
    wo = "encoder.block.1.layer.1.DenseReluDense.wo.weight"
    change_tensors(directory, lambda t: t.update({"lora.weight": t.pop(wo)}))
    change_config(directory, d_kv=4, num_decoder_layers=1)
    message = refused(directory)
    assert f"missing: {wo}, shape (32, 48)" in message
    assert "unexpected: decoder.block.1." in message
    assert "more" in message  # all are counted, some are named
    change_config(directory, d_kv=8, num_decoder_layers=2, vocab_size=400)
    message = refused(directory)
    assert "wrong shape: shared.weight has (384, 32); config.json implies (400, 32)" in message
    assert "unexpected: lora.weight" in message


def test_other_models_are_refused_with_the_reason(tmp_path: Path) -> None:
    _, directory = export(tmp_path)
    for values, expected in [
        ({"model_type": "umt5"}, "missing: decoder.block.1.layer.0.SelfAttention.relative_att"),
        ({"model_type": "bart"}, "model_type is 'bart'; expected 't5'"),
        ({"model_type": "t5", "feed_forward_proj": "gelu"}, "'gelu' is not supported"),
        ({"feed_forward_proj": "gated-gelu", "d_ff": "absent"}, "from 1 to 2,147,483,647 for d_ff"),
        ({"d_ff": 48, "layer_norm_epsilon": 1e-5}, "epsilon is 1e-05; only T5's value 1e-06"),
        ({"layer_norm_epsilon": 1e-6, "pad_token_id": 5}, "pad_token_id is 5; only T5's value 0"),
    ]:
        change_config(directory, **values)
        assert expected in refused(directory)


def test_incomplete_and_foreign_files_are_refused(tmp_path: Path) -> None:
    _, directory = export(tmp_path, "--max-shard-size", "20KB")
    shards = sorted(directory.glob("model-*.safetensors"))
    content = shards[1].read_bytes()
    shards[1].write_bytes(content[:-100])
    assert f"{shards[1].name} is truncated" in refused(directory, IncompleteCheckpoint)
    shards[1].write_bytes(content[:20])
    assert "truncated" in refused(directory, IncompleteCheckpoint)
    shards[1].write_bytes(b"{}" * 50)
    refused(directory)
    shards[1].unlink()
    assert f"has no file {shards[1].name}" in refused(directory, IncompleteCheckpoint)
    shards[1].write_bytes(content)
    (directory / "config.json").unlink()
    assert "has no file config.json" in refused(directory, IncompleteCheckpoint)


@pytest.mark.parametrize("chunks", [1, 3])
def test_flax_files(chunks: int, tmp_path: Path) -> None:
    _, directory = export(tmp_path)
    expected = {name: x.read() for name, x in open_checkpoint(directory).tensors.items()}
    leaves: dict[str, Any] = {
        k: writers.flax_extension(x) for k, x in writers.flax_tree(directory).items()
    }
    if chunks > 1:  # As flax stores arrays over 1 GiB.
        array = writers.flax_tree(directory)["shared/embedding"]
        parts = np.array_split(array.ravel(), chunks)
        leaves["shared/embedding"] = {
            "__msgpack_chunked_array__": True,
            "shape": {str(i): n for i, n in enumerate(array.shape)},
            "chunks": {str(i): writers.flax_extension(part) for i, part in enumerate(parts)},
        }
    file = writers.write_flax(directory, leaves)
    checkpoint = open_checkpoint(directory)
    assert checkpoint.tensors.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(checkpoint.tensors[name].read(), array, err_msg=name)
        np.testing.assert_array_equal(checkpoint.tensors[name].read((slice(3, 9),)), array[3:9])
    content = file.read_bytes()
    for damaged in (content[:-100], content[:20], b"", content + b"x", b"\x93" + content[1:]):
        file.write_bytes(damaged)
        assert f"{file} is truncated or not a Flax msgpack file" in refused(
            directory, IncompleteCheckpoint
        )


@pytest.mark.parametrize("legacy", [False, True])
def test_pytorch_files(legacy: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra: torch)")
    _, directory = export(tmp_path)
    expected = {name: x.read() for name, x in open_checkpoint(directory).tensors.items()}
    tensors = {
        name: torch.from_numpy(x) for name, x in load_file(directory / "model.safetensors").items()
    }
    file = writers.write_pytorch(directory, is_zip=not legacy)
    found = open_checkpoint(directory).tensors
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name].read(), array, err_msg=name)
        np.testing.assert_array_equal(found[name].read((slice(3, 9),)), array[3:9])
    torch.save({name: x.bfloat16() for name, x in tensors.items()}, file)
    embedding = open_checkpoint(directory).tensors["target/token_embedder/embedding"]
    assert embedding.read().dtype == ml_dtypes.bfloat16
    file.write_bytes(file.read_bytes()[:-1000])
    assert str(file) in refused(directory)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra: torch)")
    _, directory = export(tmp_path)
    (directory / "model.safetensors").unlink()
    file, proof = directory / "pytorch_model.bin", tmp_path / "proof"
    for content in ({"shared.weight": RunsCode(proof)}, RunsCode(proof)):
        torch.save(content, file)
        assert f"{file} was not loaded" in refused(directory)
        file.write_bytes(pickle.dumps(content))
        assert f"{file} was not loaded" in refused(directory)
        assert not proof.exists()


def test_a_step_is_refused(tmp_path: Path) -> None:
    _, directory = export(tmp_path)
    with pytest.raises(ConversionError, match=r"has no steps\. Leave out the step \(5\)"):
        open_checkpoint(directory, 5)
