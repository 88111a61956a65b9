"""The published models of the T5 family, recognized by their tensors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conversion import Architecture, ConversionError, infer_architecture, mapping, open_checkpoint
from conversion.families import FAMILIES, MADLAD_IDS, Family, Size, describe, published
from conversion.huggingface import Export, config, write_export
from conversion.tensor import Checkpoint, Tensor
from mtf.base.errors import UserError
from mtf.inference.opening import checkpoint_vocabulary
from tests.conversion import writers

# config.json of the models on the hub, without what all T5 models share.
_KEYS = ("vocab_size", "d_model", "d_ff", "num_layers", "num_decoder_layers", "num_heads", "d_kv")
_GELU, _SILU = {"feed_forward_proj": "gated-gelu"}, {"feed_forward_proj": "gated-silu"}
_MADLAD, _PILE = {"eos_token_id": 2, "pad_token_id": 1}, {"eos_token_id": 2, "pad_token_id": 0}
_UMT5 = {"model_type": "umt5"}
HUB: dict[str, dict[str, Any]] = {
    name: dict(zip(_KEYS, sizes, strict=True)) | others
    for name, sizes, others in (
        ("google/flan-t5-xxl", (32128, 4096, 10240, 24, 24, 64, 64), _GELU),
        ("google/ul2", (32128, 4096, 16384, 32, 32, 16, 256), _SILU),
        ("CohereLabs/aya-101", (250112, 4096, 10240, 24, 24, 64, 64), _GELU),
        ("google/umt5-base", (256384, 768, 2048, 12, 12, 12, 64), _GELU | _UMT5),
        ("EleutherAI/pile-t5-base", (32128, 768, 2048, 12, 12, 12, 64), _GELU | _UMT5 | _PILE),
        ("google/madlad400-3b-mt", (256000, 1024, 8192, 32, 32, 16, 128), _GELU | _MADLAD),
        ("google/madlad400-10b-mt", (256000, 2048, 16384, 32, 32, 32, 128), _GELU | _MADLAD),
    )
}


def architecture(family: Family, size: Size) -> Architecture:
    return Architecture(
        vocab_size=family.vocab_size,
        mlp_activations=family.mlp_activations,
        logits_via_embedding=family.name == "T5 1.0",
        relative_attention_num_buckets=32,
        relpos_bias_per_layer=family.relpos_bias_per_layer,
        **size._asdict(),
    )


def shapes_only(sizes: Architecture) -> Checkpoint:
    """A checkpoint of a network of any size, whose tensors cannot be read."""

    def read(_: Any) -> np.ndarray[Any, Any]:
        raise AssertionError("reads no tensors")

    tensors = {
        f"target/{entry.t5x}": Tensor(entry.t5x, entry.shape, np.dtype(np.float32), read)
        for entry in mapping.entries(sizes)
    }
    return Checkpoint(Path("checkpoint_7"), "t5x-zarr", 7, tensors)


@pytest.mark.parametrize(
    ("family", "size"), [(family, size) for family in FAMILIES for size in family.sizes]
)
def test_inferred_from_the_tensors_alone(family: Family, size: str) -> None:
    sizes = architecture(family, family.sizes[size])
    found = infer_architecture(shapes_only(sizes))
    assert found == sizes
    assert published(found) == (family, size)
    assert f"{family.name} {size}: ".lower() in describe(found).lower()


@pytest.mark.parametrize("name", HUB)
def test_config_as_on_the_hub(name: str) -> None:
    there = HUB[name]
    (sizes,) = (
        architecture(family, size)
        for family in FAMILIES
        for size in family.sizes.values()
        if (family.vocab_size, size.mlp_dim, size.num_heads, size.head_dim, size.emb_dim)
        == tuple(there[key] for key in ("vocab_size", "d_ff", "num_heads", "d_kv", "d_model"))
        and family.mlp_activations != ("relu",)
        and family.relpos_bias_per_layer == (there.get("model_type") == "umt5")
    )
    written = config(Export(shapes_only(sizes)))
    common = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    expected = common | there
    assert {key: written[key] for key in expected} == expected


def test_another_size_is_no_published_one() -> None:
    family = FAMILIES[2]
    other = dataclasses.replace(architecture(family, family.sizes["20b"]), num_encoder_layers=31)
    assert published(other) is None
    assert infer_architecture(shapes_only(other)).mlp_activations == ("gelu", "linear")
    assert describe(other).startswith("no published sizes: 31 + 32 layers, d_model 4096")


def test_a_contradiction_names_the_tensor_and_both_shapes() -> None:
    sizes = Architecture(40, 32, 3, 8, 2, 2, 48, ("gelu", "linear"), False, 32)
    for name, shape, message in [
        ("decoder/layers_1/mlp/wo/kernel", (47, 32), r"has \(47, 32\); expected \(48, 32\)"),
        ("encoder/relpos_bias/rel_embedding", (5, 32), r"\(32, 24\).*multiple of 5,.*\(5, 32\)"),
        ("decoder/relpos_bias/rel_embedding", (4, 32), r"has \(4, 32\); expected \(3, 32\)"),
    ]:
        checkpoint = shapes_only(sizes)
        tensor = checkpoint.tensors[f"target/{name}"]
        checkpoint.tensors[f"target/{name}"] = dataclasses.replace(tensor, shape=shape)
        with pytest.raises(ConversionError, match=message) as caught:
            Export(checkpoint)
        assert f"target/{name}" in str(caught.value)


@pytest.mark.parametrize(
    ("per_layer", "model_type", "message"),
    [(True, "t5", "each layer has its own relative position bias"), (False, "umt5", "share")],
)
def test_model_types_that_do_not_fit(per_layer: bool, model_type: Any, message: str) -> None:
    sizes = Architecture(40, 32, 3, 8, 2, 2, 48, ("gelu", "linear"), False, 32, per_layer)
    with pytest.raises(ConversionError, match=message):
        Export(shapes_only(sizes), model_type=model_type)


@pytest.mark.parametrize("per_layer", [False, True])
def test_there_and_back_with_the_ids_of_madlad(per_layer: bool, tmp_path: Path) -> None:
    parameters = writers.random_parameters(num_encoder_layers=3, bias_per_layer=per_layer)
    source = open_checkpoint(writers.write_t5x(tmp_path, parameters))
    out = tmp_path / "out"
    out.mkdir()
    write_export(Export(source, special_ids=MADLAD_IDS), out)
    written = json.loads((out / "config.json").read_text())
    assert (written["pad_token_id"], written["eos_token_id"]) == (1, 2)
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == 2
    back = open_checkpoint(out)
    assert back.described["special_ids"] == MADLAD_IDS
    assert infer_architecture(back) == infer_architecture(source)
    writers.assert_holds(back, parameters)


@pytest.mark.parametrize(
    ("name", "size"), [("Pile-T5", "base"), ("umT5", "small"), ("MADLAD-400", "3b")]
)
def test_another_vocabulary_is_not_assumed(name: str, size: str) -> None:
    (family,) = (family for family in FAMILIES if family.name == name)
    checkpoint = shapes_only(architecture(family, family.sizes[size]))
    with pytest.raises(UserError, match=f"its sizes are those of {name}, whose vocabulary"):
        checkpoint_vocabulary(checkpoint, None, None, family.vocab_size)
