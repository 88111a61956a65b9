"""The table of names, read both ways."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from conversion import Architecture, mapping

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


@pytest.mark.parametrize(
    ("architecture", "num_parameters"), [(T5_1_1_SMALL, 76_961_152), (T5_SMALL, 60_506_624)]
)
def test_published_parameter_counts(architecture: Architecture, num_parameters: int) -> None:
    entries = mapping.entries(architecture)
    assert sum(int(np.prod(entry.shape)) for entry in entries) == num_parameters
    assert sum(int(np.prod(entry.hf_shape)) for entry in entries) == num_parameters


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
    names = {e.t5x: e.hf for sizes in (UNEQUAL, T5_SMALL) for e in mapping.entries(sizes)}
    assert pairs.items() <= names.items()
