"""Infers the architecture of a network from the names and shapes of its tensors."""

from __future__ import annotations

import dataclasses
import re

from conversion.families import published
from conversion.tensor import Checkpoint, ConversionError

# More layers are an error in a name or in config.json; their tensors are not listed as missing.
MAX_LAYERS = 1000


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The sizes of a T5 network, under T5X's names."""

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
    # Whether each layer has its own relative position bias, as in umT5.
    relpos_bias_per_layer: bool = False

    @property
    def gated(self) -> bool:
        """Whether the MLP multiplies two projections."""
        return len(self.mlp_activations) > 1


def infer_architecture(checkpoint: Checkpoint) -> Architecture:
    """Returns the sizes of the checkpoint's network; raises ConversionError if it is no T5.

    Unless the checkpoint describes its activations, they are those of the published model with the
    same sizes (UL2: silu), otherwise gelu if the MLP is gated (T5 1.1), else relu (T5 1.0).
    """
    shapes = {name: tensor.shape for name, tensor in checkpoint.parameters().items()}
    if not shapes:
        raise ConversionError(f"{checkpoint.path} has no parameters (no tensor under target/).")

    def shape(name: str) -> tuple[int, ...]:
        if name not in shapes:
            raise ConversionError(
                f"{checkpoint.path} is not a T5 model: it has no parameter target/{name}. Its "
                f"parameters begin with target/{min(shapes)}."
            )
        if len(shapes[name]) != 2:
            raise ConversionError(
                f"{checkpoint.path}: target/{name} has shape {shapes[name]}; expected 2 dimensions."
            )
        return shapes[name]

    def num_layers(side: str) -> int:
        matches = (re.match(rf"{side}/layers_(\d{{1,9}})/", name) for name in shapes)
        number = 1 + max((int(match[1]) for match in matches if match), default=-1)
        if number > MAX_LAYERS:
            raise ConversionError(
                f"{checkpoint.path} has a layer target/{side}/layers_{number - 1}; expected at "
                f"most {MAX_LAYERS:,} layers."
            )
        return number

    vocab_size, emb_dim = shape("token_embedder/embedding")
    per_layer = "encoder/layers_0/relpos_bias/rel_embedding" in shapes
    bias = f"encoder/{'layers_0/' * per_layer}relpos_bias/rel_embedding"
    num_heads, num_buckets = shape(bias)
    query, mlp = "encoder/layers_0/attention/query/kernel", "encoder/layers_0/mlp"
    _, joined = shape(query)
    if not num_heads or joined % num_heads:
        raise ConversionError(
            f"{checkpoint.path}: target/{query} has shape {shapes[query]}; expected a multiple of "
            f"{num_heads} columns, the number of heads in target/{bias}, whose shape is "
            f"{shapes[bias]}."
        )
    gated = f"{mlp}/wi_0/kernel" in shapes
    _, mlp_dim = shape(f"{mlp}/wi_0/kernel" if gated else f"{mlp}/wi/kernel")
    activations: tuple[str, ...] = ("gelu", "linear") if gated else ("relu",)
    sizes = Architecture(
        vocab_size=vocab_size,
        emb_dim=emb_dim,
        num_heads=num_heads,
        head_dim=joined // num_heads,
        num_encoder_layers=num_layers("encoder"),
        num_decoder_layers=num_layers("decoder"),
        mlp_dim=mlp_dim,
        mlp_activations=activations,
        logits_via_embedding="decoder/logits_dense/kernel" not in shapes,
        relative_attention_num_buckets=num_buckets,
        relpos_bias_per_layer=per_layer,
    )
    if found := published(sizes):
        activations = found[0].mlp_activations
    described = checkpoint.described.get("mlp_activations", activations)
    return dataclasses.replace(sizes, mlp_activations=described)
