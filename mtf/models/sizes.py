"""The sizes of the T5 family. Imports no JAX.

Sources: Raffel et al. 2020 (T5 1.0), Shazeer 2020 (the gated activations of T5 1.1), Xue et al.
2021 (mT5) and 2022 (ByT5), Chung et al. 2023 (umT5).
"""

from __future__ import annotations

from typing import NamedTuple

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
