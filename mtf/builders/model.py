"""Returns configs of T5 models by family and size (see `conversion.families`)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import fiddle as fdl

from conversion.families import (
    BYT5_SIZES,
    BYT5_VOCAB_SIZE,
    MT5_VOCAB_SIZE,
    T5_1_0_SIZES,
    T5_1_1_SIZES,
    T5_VOCAB_SIZE,
    UMT5_VOCAB_SIZE,
    Size,
)
from mtf.base.errors import UserError, did_you_mean
from mtf.models.settings import ModelConfig, RematPolicy, T5Config

Dtype = Literal["float32", "bfloat16"]
Model: TypeAlias = fdl.Config[ModelConfig]


def t5_1_0(size: str, *, dropout_rate: float = 0.1, dtype: Dtype = "bfloat16") -> Model:
    """Returns T5 1.0, which uses ReLU and ties the output projection to the embedding.

    Sizes: small, base, large, 3b, 11b.
    """
    model = _model(T5_1_0_SIZES, size, T5_VOCAB_SIZE, dropout_rate, dtype)
    model.network.mlp_activations = ("relu",)
    model.network.logits_via_embedding = True
    return model


def t5_1_1(
    size: str,
    *,
    vocab_size: int = T5_VOCAB_SIZE,
    dropout_rate: float = 0.1,
    dtype: Dtype = "bfloat16",
    remat_policy: RematPolicy = "none",
) -> Model:
    """Returns T5 1.1 (or LM-adapted T5), with gated GELU and an untied output projection.

    Sizes: small, base, large, xl, xxl.
    """
    return _model(T5_1_1_SIZES, size, vocab_size, dropout_rate, dtype, remat_policy)


def mt5(size: str, *, dropout_rate: float = 0.1, remat_policy: RematPolicy = "none") -> Model:
    """Returns mT5, a T5 1.1 with 250,112 embedding rows. Sizes: small, base, large, xl, xxl."""
    return _model(T5_1_1_SIZES, size, MT5_VOCAB_SIZE, dropout_rate, remat_policy=remat_policy)


def umt5(size: str, *, dropout_rate: float = 0.1, remat_policy: RematPolicy = "none") -> Model:
    """Returns umT5, an mT5 with 256,384 embedding rows and a position bias in each layer.

    Sizes: small, base, large (never released), xl, xxl.
    """
    model = _model(T5_1_1_SIZES, size, UMT5_VOCAB_SIZE, dropout_rate, remat_policy=remat_policy)
    model.network.relpos_bias_per_layer = True
    return model


def byt5(size: str, *, dropout_rate: float = 0.1, dtype: Dtype = "bfloat16") -> Model:
    """Returns ByT5, with 3 encoder layers per decoder layer. Sizes: small, base, large, xl, xxl."""
    return _model(BYT5_SIZES, size, BYT5_VOCAB_SIZE, dropout_rate, dtype)


def t5(
    *,
    vocab_size: int,
    emb_dim: int,
    num_heads: int,
    head_dim: int = 64,
    num_encoder_layers: int,
    num_decoder_layers: int,
    mlp_dim: int,
    dropout_rate: float = 0.1,
    dtype: Dtype = "bfloat16",
    scan_layers: bool = True,
) -> Model:
    """Returns a T5 1.1 of any size."""
    network = fdl.Config(
        T5Config,
        vocab_size=vocab_size,
        emb_dim=emb_dim,
        num_heads=num_heads,
        head_dim=head_dim,
        num_encoder_layers=num_encoder_layers,
        num_decoder_layers=num_decoder_layers,
        mlp_dim=mlp_dim,
        dropout_rate=dropout_rate,
        dtype=dtype,
        scan_layers=scan_layers,
    )
    return fdl.Config(ModelConfig, network=network)


def is_scanned(joined_kv: int) -> bool:
    """Returns whether the layers of a network are scanned, given the size of all its heads.

    Those of small, base and large models are unrolled, because this makes steps faster.
    """
    return joined_kv > 1024


def _model(
    sizes: dict[str, Size],
    size: str,
    vocab_size: int,
    dropout_rate: float,
    dtype: Dtype = "bfloat16",
    remat_policy: RematPolicy = "none",
) -> Model:
    if size not in sizes:
        raise UserError(
            f"Unknown size {size!r}; expected one of {', '.join(sizes)}."
            + did_you_mean(size, sizes)
        )
    values = sizes[size]._asdict()
    model = t5(vocab_size=vocab_size, dropout_rate=dropout_rate, dtype=dtype, **values)
    model.network.scan_layers = is_scanned(model.network.num_heads * model.network.head_dim)
    model.network.remat_policy = remat_policy
    return model
