"""The architectures of the T5 family, by size.

Sources: Raffel et al. 2020 (T5 1.0), Shazeer 2020 (the gated activations of T5 1.1), Xue et al.
2021 (mT5) and 2022 (ByT5), Chung et al. 2023 (umT5).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import fiddle as fdl

from mtf.errors import UserError, did_you_mean
from mtf.models.settings import ModelConfig, T5Config

Dtype = Literal["float32", "bfloat16"]
RematPolicy = Literal["none", "minimal", "full"]
Model: TypeAlias = fdl.Config[ModelConfig]

T5_VOCAB_SIZE = 32128  # 32,000 pieces + 100 sentinels, padded to a multiple of 128
MT5_VOCAB_SIZE = 250112
UMT5_VOCAB_SIZE = 256384
BYT5_VOCAB_SIZE = 384


class Size(NamedTuple):
    """The values that differ between the sizes of an architecture."""

    num_encoder_layers: int
    num_decoder_layers: int
    emb_dim: int
    mlp_dim: int
    num_heads: int
    head_dim: int = 64


T5_1_0_SIZES = {
    "small": Size(6, 6, 512, 2048, 8),
    "base": Size(12, 12, 768, 3072, 12),
    "large": Size(24, 24, 1024, 4096, 16),
    "3b": Size(24, 24, 1024, 16384, 32, 128),
    "11b": Size(24, 24, 1024, 65536, 128, 128),
}
T5_1_1_SIZES = {
    "small": Size(8, 8, 512, 1024, 6),
    "base": Size(12, 12, 768, 2048, 12),
    "large": Size(24, 24, 1024, 2816, 16),
    "xl": Size(24, 24, 2048, 5120, 32),
    "xxl": Size(24, 24, 4096, 10240, 64),
}
BYT5_SIZES = {
    "small": Size(12, 4, 1472, 3584, 6),
    "base": Size(18, 6, 1536, 3968, 12),
    "large": Size(36, 12, 1536, 3840, 16),
    "xl": Size(36, 12, 2560, 6720, 32),
    "xxl": Size(36, 12, 4672, 12352, 64),
}


def t5_1_0(size: str, *, dropout_rate: float = 0.1, dtype: Dtype = "bfloat16") -> Model:
    """T5 1.0: ReLU, output projection tied to the embedding. Sizes small, base, large, 3b, 11b."""
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
    """T5 1.1, and LM-adapted T5: gated GELU, untied. Sizes small, base, large, xl, xxl."""
    return _model(T5_1_1_SIZES, size, vocab_size, dropout_rate, dtype, remat_policy)


def mt5(
    size: str,
    *,
    dropout_rate: float = 0.1,
    dtype: Dtype = "bfloat16",
    remat_policy: RematPolicy = "none",
) -> Model:
    """mT5: T5 1.1 with 250,112 embedding rows. Sizes small, base, large, xl, xxl."""
    return _model(T5_1_1_SIZES, size, MT5_VOCAB_SIZE, dropout_rate, dtype, remat_policy)


def umt5(
    size: str,
    *,
    dropout_rate: float = 0.1,
    dtype: Dtype = "bfloat16",
    remat_policy: RematPolicy = "none",
) -> Model:
    """umT5: mT5 with 256,384 embedding rows and a relative position bias in every layer.

    Sizes small, base, large (of which no checkpoint was released), xl, xxl.
    """
    model = _model(T5_1_1_SIZES, size, UMT5_VOCAB_SIZE, dropout_rate, dtype, remat_policy)
    model.network.relpos_bias_per_layer = True
    return model


def byt5(size: str, *, dropout_rate: float = 0.1, dtype: Dtype = "bfloat16") -> Model:
    """ByT5: bytes, and an encoder three times as deep. Sizes small, base, large, xl, xxl."""
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


def _model(
    sizes: dict[str, Size],
    size: str,
    vocab_size: int,
    dropout_rate: float,
    dtype: Dtype,
    remat_policy: RematPolicy = "none",
) -> Model:
    if size not in sizes:
        raise UserError(
            f"Unknown size {size!r}; expected one of {', '.join(sizes)}."
            + did_you_mean(size, sizes)
        )
    values = sizes[size]._asdict()
    model = t5(vocab_size=vocab_size, dropout_rate=dropout_rate, dtype=dtype, **values)
    model.network.remat_policy = remat_policy
    return model
