"""The network sizes of the published models of the T5 family.

The sources are Raffel et al. 2020 (T5 1.0), Shazeer 2020 (the gated activations of T5 1.1), Xue et
al. 2021 (mT5) and 2022 (ByT5), Chung et al. 2023 (umT5), T5X's docs/models.md and gin files, and
the config.json files on the Hugging Face Hub. This module imports only the standard library.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

# The special ids of T5, MADLAD-400, and Pile-T5 and CodeT5, named as in config.json.
SPECIAL_IDS: Mapping[str, int] = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
MADLAD_IDS: Mapping[str, int] = {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
PILE_IDS: Mapping[str, int] = {**SPECIAL_IDS, "eos_token_id": 2}

T5_VOCAB_SIZE = 32128  # 32,000 pieces + 100 sentinels, padded to a multiple of 128
MT5_VOCAB_SIZE = 250112
UMT5_VOCAB_SIZE = 256384
BYT5_VOCAB_SIZE = 384

_GELU, _SILU, _RELU = ("gelu", "linear"), ("silu", "linear"), ("relu",)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The architecture of a T5 network; the fields have the same names as in T5X."""

    vocab_size: int
    emb_dim: int
    num_heads: int
    head_dim: int
    num_encoder_layers: int
    num_decoder_layers: int
    mlp_dim: int
    mlp_activations: tuple[str, ...]
    logits_via_embedding: bool
    relative_attention_num_buckets: int
    # Whether each layer has a separate relative position bias, as in umT5.
    relpos_bias_per_layer: bool = False

    @property
    def gated(self) -> bool:
        """Whether the MLP is gated, that is, whether it multiplies two projections."""
        return len(self.mlp_activations) > 1


class Size(NamedTuple):
    """The sizes of a network, except its vocabulary size."""

    num_encoder_layers: int
    num_decoder_layers: int
    emb_dim: int
    mlp_dim: int
    num_heads: int
    head_dim: int = 64


class Family(NamedTuple):
    """Published models with the same vocabulary and type of network.

    Attributes:
      name: the names of the models, beginning with the model that was published first.
      vocab_size: the number of rows of the embedding, including unused rows.
      mlp_activations: the activations of the MLP.
      sizes: dict mapping the name of each size, such as "base", to the sizes of the network.
      relpos_bias_per_layer: whether each layer has a separate relative position bias.
      special_ids: the ids of padding, EOS and the decoder's start token.
    """

    name: str
    vocab_size: int
    mlp_activations: tuple[str, ...]
    sizes: Mapping[str, Size]
    relpos_bias_per_layer: bool = False
    special_ids: Mapping[str, int] = SPECIAL_IDS


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
_CODE = {name: T5_1_0_SIZES[name] for name in ("small", "base", "large")}
_PILE = {name: size for name, size in T5_1_1_SIZES.items() if name != "small"}
BYT5_SIZES = {
    "small": Size(12, 4, 1472, 3584, 6),
    "base": Size(18, 6, 1536, 3968, 12),
    "large": Size(36, 12, 1536, 3840, 16),
    "xl": Size(36, 12, 2560, 6720, 32),
    "xxl": Size(36, 12, 4672, 12352, 64),
}
_MADLAD = {
    "3b": Size(32, 32, 1024, 8192, 16, 128),
    "7b": Size(48, 48, 2048, 8192, 16, 128),
    "10b": Size(32, 32, 2048, 16384, 32, 128),
}

FAMILIES = (
    Family("T5 1.0", T5_VOCAB_SIZE, _RELU, T5_1_0_SIZES),
    Family("T5 1.1, LM-adapted T5, T0 or Flan-T5", T5_VOCAB_SIZE, _GELU, T5_1_1_SIZES),
    Family("UL2 or Flan-UL2", T5_VOCAB_SIZE, _SILU, {"20b": Size(32, 32, 4096, 16384, 16, 256)}),
    Family("mT5, mT0 or Aya-101", MT5_VOCAB_SIZE, _GELU, T5_1_1_SIZES),
    Family("umT5", UMT5_VOCAB_SIZE, _GELU, T5_1_1_SIZES, relpos_bias_per_layer=True),
    Family("Pile-T5", T5_VOCAB_SIZE, _GELU, _PILE, True, PILE_IDS),
    Family("ByT5", BYT5_VOCAB_SIZE, _GELU, BYT5_SIZES),
    Family("MADLAD-400", 256000, _GELU, _MADLAD, special_ids=MADLAD_IDS),
    Family("CodeT5 or CodeT5+", 32100, _RELU, _CODE, special_ids=PILE_IDS),
)


def published(sizes: Architecture) -> tuple[Family, str] | None:
    """Returns the family and size name of the published model with these sizes, or None.

    The activations of a gated MLP are not compared, because tensors do not determine them.
    """
    for family in FAMILIES:
        if (
            family.vocab_size == sizes.vocab_size
            and (len(family.mlp_activations) > 1) == sizes.gated
            and family.relpos_bias_per_layer == sizes.relpos_bias_per_layer
        ):
            for name, size in family.sizes.items():
                if all(getattr(sizes, field) == n for field, n in size._asdict().items()):
                    return family, name
    return None


def describe(sizes: Architecture) -> str:
    """Returns a line of text: a network's sizes, and the published model that has them, if any."""
    found = published(sizes)
    name = "no published sizes"
    if found:
        family, size = found
        name = f"the sizes of {family.name} {size.upper() if len(size) < 4 else size}"  # XL, 11B
    depth = f"{sizes.num_encoder_layers} + {sizes.num_decoder_layers} layers"
    heads = f"{sizes.num_heads} heads of {sizes.head_dim}"
    mlp = f"{'gated' if sizes.gated else 'ungated'} MLP of {sizes.mlp_dim}"
    logits = "tied" if sizes.logits_via_embedding else "separate"
    per_layer = ", a relative position bias in every layer" * sizes.relpos_bias_per_layer
    return (
        f"{name}: {depth}, d_model {sizes.emb_dim}, {heads}, {mlp}, vocabulary of "
        f"{sizes.vocab_size} rows, {logits} output projection{per_layer}"
    )
