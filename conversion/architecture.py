"""Infers the architecture of a network from the names and shapes of its parameters."""

from __future__ import annotations

import dataclasses
import re

from conversion.families import Architecture, published
from conversion.tensor import Checkpoint, ConversionError

# The maximum number of layers; a larger number is an error in a parameter's name or in config.json.
MAX_LAYERS = 1000


def infer_architecture(checkpoint: Checkpoint) -> Architecture:
    """Returns a checkpoint's architecture; raises ConversionError for networks other than T5.

    If the checkpoint does not describe its MLP activations, those of the published model with the
    same sizes are used, for example silu for UL2. If no published model has these sizes, gelu is
    used for a gated MLP, as in T5 1.1, and relu for an ungated one, as in T5 1.0.
    """
    shapes = {name: tensor.shape for name, tensor in checkpoint.parameters().items()}
    if not shapes:
        raise ConversionError(f"{checkpoint.path} has no parameters (no tensor under target/).")

    def shape(name: str) -> tuple[int, ...]:
        if name not in shapes:
            raise ConversionError(
                f"{checkpoint.path} is not a T5 model: it has no parameter target/{name}. Its "
                f"first parameter in alphabetical order is target/{min(shapes)}."
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
            f"{checkpoint.path}: target/{query} has shape {shapes[query]}; expected the number of "
            f"columns to be a multiple of {num_heads}, which is the number of heads according to "
            f"target/{bias}, whose shape is {shapes[bias]}."
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
