"""The published models of the T5 family, recognized by the sizes of their networks.

Sources: T5X's docs/models.md and gin files; config.json of the models on the Hugging Face hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from conversion.architecture import Architecture

# T5's special ids under the names of config.json, MADLAD-400's and Pile-T5's.
SPECIAL_IDS: Mapping[str, int] = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
MADLAD_IDS: Mapping[str, int] = {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
PILE_IDS: Mapping[str, int] = {**SPECIAL_IDS, "eos_token_id": 2}

_GELU, _SILU, _RELU = ("gelu", "linear"), ("silu", "linear"), ("relu",)


class Size(NamedTuple):
    """The sizes of a network besides its vocabulary."""

    num_encoder_layers: int
    num_decoder_layers: int
    emb_dim: int
    mlp_dim: int
    num_heads: int
    head_dim: int = 64


class Family(NamedTuple):
    """Models of one vocabulary and one kind of network.

    Attributes:
      name: the first model that had the network, and later models with the same network.
      vocab_size: number of rows of the embedding, including padding.
      mlp_activations: activations of the MLP.
      sizes: name of a size → sizes of the network.
      relpos_bias_per_layer: whether each layer has its own relative position bias.
      special_ids: ids of padding and EOS.
    """

    name: str
    vocab_size: int
    mlp_activations: tuple[str, ...]
    sizes: Mapping[str, Size]
    relpos_bias_per_layer: bool = False
    special_ids: Mapping[str, int] = SPECIAL_IDS


_T5_1_0 = {
    "small": Size(6, 6, 512, 2048, 8),
    "base": Size(12, 12, 768, 3072, 12),
    "large": Size(24, 24, 1024, 4096, 16),
    "3B": Size(24, 24, 1024, 16384, 32, 128),
    "11B": Size(24, 24, 1024, 65536, 128, 128),
}
_T5_1_1 = {
    "small": Size(8, 8, 512, 1024, 6),
    "base": Size(12, 12, 768, 2048, 12),
    "large": Size(24, 24, 1024, 2816, 16),
    "XL": Size(24, 24, 2048, 5120, 32),
    "XXL": Size(24, 24, 4096, 10240, 64),
}
_PILE = {name: size for name, size in _T5_1_1.items() if name != "small"}
_BYT5 = {
    "small": Size(12, 4, 1472, 3584, 6),
    "base": Size(18, 6, 1536, 3968, 12),
    "large": Size(36, 12, 1536, 3840, 16),
    "XL": Size(36, 12, 2560, 6720, 32),
    "XXL": Size(36, 12, 4672, 12352, 64),
}
_MADLAD = {
    "3B": Size(32, 32, 1024, 8192, 16, 128),
    "7B": Size(48, 48, 2048, 8192, 16, 128),
    "10B": Size(32, 32, 2048, 16384, 32, 128),
}

FAMILIES = (
    Family("T5 1.0", 32128, _RELU, _T5_1_0),
    Family("T5 1.1, LM-adapted T5, T0 or Flan-T5", 32128, _GELU, _T5_1_1),
    Family("UL2 or Flan-UL2", 32128, _SILU, {"20B": Size(32, 32, 4096, 16384, 16, 256)}),
    Family("mT5, mT0 or Aya-101", 250112, _GELU, _T5_1_1),
    Family("umT5", 256384, _GELU, _T5_1_1, relpos_bias_per_layer=True),
    Family("Pile-T5", 32128, _GELU, _PILE, relpos_bias_per_layer=True, special_ids=PILE_IDS),
    Family("ByT5", 384, _GELU, _BYT5),
    Family("MADLAD-400", 256000, _GELU, _MADLAD, special_ids=MADLAD_IDS),
)


def published(sizes: Architecture) -> tuple[Family, str] | None:
    """Returns the family and the name of the size of a published network, or None.

    Compares what tensors show; so the activations of a gated MLP are not compared.
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
    """Returns the variant, depth, heads and vocabulary of a network in one line."""
    found = published(sizes)
    name = f"the sizes of {found[0].name} {found[1]}" if found else "no published sizes"
    depth = f"{sizes.num_encoder_layers} + {sizes.num_decoder_layers} layers"
    heads = f"{sizes.num_heads} heads of {sizes.head_dim}"
    mlp = f"{'gated' if sizes.gated else 'ungated'} MLP of {sizes.mlp_dim}"
    logits = "tied" if sizes.logits_via_embedding else "separate"
    per_layer = ", a relative position bias in every layer" * sizes.relpos_bias_per_layer
    return (
        f"{name}: {depth}, d_model {sizes.emb_dim}, {heads}, {mlp}, {sizes.vocab_size} rows of "
        f"vocabulary, {logits} output projection{per_layer}"
    )
