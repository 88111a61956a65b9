"""The table of names, read both ways."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from conversion import Architecture, ConversionError, mapping
from tests.conversion import writers

T5_1_1_SMALL = Architecture(
    vocab_size=32128,
    emb_dim=512,
    num_heads=6,
    head_dim=64,
    num_encoder_layers=8,
    num_decoder_layers=8,
    mlp_dim=1024,
    mlp_activations=("gelu", "linear"),
    logits_via_embedding=False,
    relative_attention_num_buckets=32,
)
T5_SMALL = dataclasses.replace(
    T5_1_1_SMALL,
    num_heads=8,
    num_encoder_layers=6,
    num_decoder_layers=6,
    mlp_dim=2048,
    mlp_activations=("relu",),
    logits_via_embedding=True,
)
UNEQUAL = dataclasses.replace(T5_1_1_SMALL, num_encoder_layers=12, num_decoder_layers=4)
ALL = [T5_1_1_SMALL, T5_SMALL, UNEQUAL]


@pytest.mark.parametrize(
    ("architecture", "num_parameters"), [(T5_1_1_SMALL, 76_961_152), (T5_SMALL, 60_506_624)]
)
def test_published_parameter_counts(architecture: Architecture, num_parameters: int) -> None:
    entries = mapping.entries(architecture)
    assert sum(int(np.prod(entry.shape)) for entry in entries) == num_parameters
    assert sum(int(np.prod(entry.hf_shape)) for entry in entries) == num_parameters


@pytest.mark.parametrize("architecture", ALL)
def test_names_there_and_back(architecture: Architecture) -> None:
    entries = mapping.entries(architecture)
    assert len({entry.t5x for entry in entries}) == len({entry.hf for entry in entries})
    assert len({entry.hf for entry in entries}) == len(entries)
    for entry in entries:
        assert mapping.hf_name(entry.t5x) == entry.hf
        assert mapping.t5x_name(entry.hf) == entry.t5x


def test_names_that_hugging_face_publishes() -> None:
    pairs = {
        "token_embedder/embedding": "shared.weight",
        "decoder/logits_dense/kernel": "lm_head.weight",
        "encoder/relpos_bias/rel_embedding": (
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ),
        "encoder/layers_10/attention/out/kernel": "encoder.block.10.layer.0.SelfAttention.o.weight",
        "encoder/layers_0/mlp/wi/kernel": "encoder.block.0.layer.1.DenseReluDense.wi.weight",
        "decoder/layers_3/pre_cross_attention_layer_norm/scale": (
            "decoder.block.3.layer.1.layer_norm.weight"
        ),
        "decoder/layers_3/encoder_decoder_attention/query/kernel": (
            "decoder.block.3.layer.1.EncDecAttention.q.weight"
        ),
        "decoder/layers_3/mlp/wi_1/kernel": "decoder.block.3.layer.2.DenseReluDense.wi_1.weight",
        "decoder/decoder_norm/scale": "decoder.final_layer_norm.weight",
    }
    for t5x, hf in pairs.items():
        assert mapping.hf_name(t5x) == hf
        assert mapping.t5x_name(hf) == t5x


def test_names_that_do_not_exist() -> None:
    with pytest.raises(ConversionError, match="no parameter named encoder/layers_x/mlp/wo/kernel"):
        mapping.hf_name("encoder/layers_x/mlp/wo/kernel")
    with pytest.raises(ConversionError, match=r"no parameter named lm_head\.bias"):
        mapping.t5x_name("lm_head.bias")


def test_arrays_there_and_back() -> None:
    parameters = writers.random_parameters(
        vocab_size=40, num_encoder_layers=2, num_decoder_layers=1
    )
    architecture = Architecture(40, 32, 3, 8, 2, 1, 48, ("gelu", "linear"), False, 32)
    entries = mapping.entries(architecture)
    assert {entry.t5x for entry in entries} == parameters.keys()
    for entry in entries:
        there = entry.convert(parameters[entry.t5x])
        assert there.shape == entry.hf_shape
        np.testing.assert_array_equal(entry.convert(there), parameters[entry.t5x])
