"""`flax_model.msgpack`, read with Flax as transformers 4 reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conversion import flax_writer
from mtf import convert
from tests.conversion import writers

serialization = pytest.importorskip("flax.serialization")


def restored(folder: Path) -> Any:
    return serialization.msgpack_restore((folder / "flax_model.msgpack").read_bytes())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
def test_names_and_shapes_are_those_of_transformers(
    tied: bool, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = writers.random_parameters(num_encoder_layers=3, gated=not tied, tied=tied)
    source, out = writers.write_t5x(tmp_path, parameters), tmp_path / "out"
    arguments = [str(source), str(out), "--to", "hf_flax", "--dtype", dtype]
    assert convert.main(arguments) == 0
    assert "from transformers import FlaxT5ForConditionalGeneration" in capsys.readouterr().out
    assert json.loads((out / "config.json").read_text())["num_layers"] == 3
    tree = restored(out)
    numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def check(found: Any, name: str, *, transposed: bool = False) -> None:
        expected = parameters[name].T if transposed else parameters[name]
        assert found.dtype == numpy_dtype
        np.testing.assert_array_equal(found, expected.astype(numpy_dtype), err_msg=name)

    check(tree["shared"]["embedding"], "token_embedder/embedding")
    layer = tree["encoder"]["block"]["2"]["layer"]
    check(layer["0"]["SelfAttention"]["q"]["kernel"], "encoder/layers_2/attention/query/kernel")
    check(layer["0"]["layer_norm"]["weight"], "encoder/layers_2/pre_attention_layer_norm/scale")
    wi = "wi" if tied else "wi_1"
    check(layer["1"]["DenseReluDense"][wi]["kernel"], f"encoder/layers_2/mlp/{wi}/kernel")
    for side in ("encoder", "decoder"):
        first = tree[side]["block"]["0"]["layer"]["0"]["SelfAttention"]
        bias = first["relative_attention_bias"]["embedding"]
        check(bias, f"{side}/relpos_bias/rel_embedding", transposed=True)
        check(tree[side]["final_layer_norm"]["weight"], f"{side}/{side}_norm/scale")
    layer = tree["decoder"]["block"]["1"]["layer"]
    name = "decoder/layers_1/encoder_decoder_attention/out/kernel"
    check(layer["1"]["EncDecAttention"]["o"]["kernel"], name)
    check(layer["2"]["DenseReluDense"]["wo"]["kernel"], "decoder/layers_1/mlp/wo/kernel")
    assert ("lm_head" in tree) is not tied
    if not tied:
        check(tree["lm_head"]["kernel"], "decoder/logits_dense/kernel")
    assert len(_leaves(tree)) == len(parameters)


def _leaves(tree: Any) -> list[Any]:
    if not isinstance(tree, dict):
        return [tree]
    return [leaf for each in tree.values() for leaf in _leaves(each)]


def test_long_arrays_are_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = writers.random_parameters()
    source = writers.write_t5x(tmp_path, parameters)
    monkeypatch.setattr(flax_writer, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 1000)
    assert convert.main([str(source), str(tmp_path / "out"), "--to", "hf_flax"]) == 0
    content = (tmp_path / "out" / "flax_model.msgpack").read_bytes()
    tree = serialization.msgpack_restore(content)
    np.testing.assert_array_equal(
        tree["shared"]["embedding"], parameters["token_embedder/embedding"]
    )
    # Flax writes the same bytes, with the names in this order.
    assert serialization.msgpack_serialize(tree) == content
