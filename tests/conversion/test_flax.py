"""`flax_model.msgpack`, read with Flax as transformers 4 reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conversion import blocks, flax_writer, huggingface, open_checkpoint
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
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 300)
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 1000)
    assert convert.main([str(source), str(tmp_path / "out"), "--to", "hf_flax"]) == 0
    content = (tmp_path / "out" / "flax_model.msgpack").read_bytes()
    tree = serialization.msgpack_restore(content)
    np.testing.assert_array_equal(
        tree["shared"]["embedding"], parameters["token_embedder/embedding"]
    )
    # Flax writes the same bytes, with the names in this order.
    assert serialization.msgpack_serialize(tree) == content


def test_options_of_pytorch_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = writers.write_t5x(tmp_path, writers.random_parameters())
    arguments = [str(source), str(tmp_path / "out"), "--to", "hf_flax", "--max-shard-size", "1GB"]
    assert convert.main(arguments) == 2
    assert "--max-shard-size: not for --to hf_flax" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# To run this with transformers 4: pip install --no-deps --target DIR transformers==4.49.0
# tokenizers==0.21.4 huggingface_hub==0.36.0; PYTHONPATH=DIR python -m pytest …
def _flax_class(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    if int(transformers.__version__.split(".")[0]) > 4:
        pytest.skip("transformers 5 has no Flax classes")
    return getattr(transformers, name)


@pytest.mark.parametrize(
    ("name", "gated", "tied"), [("T5", False, True), ("T5", True, False), ("MT5", True, False)]
)
def test_transformers_4_computes_the_same_logits(
    name: str, gated: bool, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax.numpy as jnp

    from mtf import verify
    from mtf.models import t5

    clip = jnp.clip  # Its arguments had other names when transformers 4.49 appeared.
    monkeypatch.setattr(jnp, "clip", lambda x, a_max: clip(x, max=a_max))
    model_class = _flax_class(f"Flax{name}ForConditionalGeneration")
    parameters = writers.random_parameters(num_encoder_layers=3, gated=gated, tied=tied)
    source, out = writers.write_t5x(tmp_path, parameters), tmp_path / "out"
    arguments = [str(source), str(out), "--to", "hf_flax", "--model-type", name.lower()]
    assert convert.main(arguments) == 0
    model = model_class.from_pretrained(out)
    export = huggingface.Export(open_checkpoint(source))
    config, params = verify.load_network(export)
    rng = np.random.default_rng(0)
    encoder, decoder = rng.integers(3, 384, (3, 17)), rng.integers(3, 384, (3, 9))
    theirs = model(
        input_ids=encoder, attention_mask=np.ones_like(encoder), decoder_input_ids=decoder
    ).logits
    batch = {"encoder_input_tokens": encoder, "decoder_input_tokens": decoder}
    batch["decoder_target_tokens"] = np.ones_like(decoder)
    ours = np.asarray(t5.apply(config, params, batch))
    assert np.abs(ours).max() > 0.1
    np.testing.assert_allclose(theirs, ours, atol=2e-5)
    # And what it writes is read.
    model.save_pretrained(tmp_path / "saved")
    saved, expected = (open_checkpoint(x).parameters() for x in (tmp_path / "saved", out))
    assert saved.keys() == expected.keys()
    for key, tensor in saved.items():
        np.testing.assert_array_equal(tensor.read(), expected[key].read(), err_msg=key)
