"""What network a checkpoint's tensors belong to, from their names and shapes alone."""

from __future__ import annotations

import dataclasses
import re

from conversion.errors import ConversionError
from conversion.tensor import Checkpoint, Tensor

_LAYER = re.compile(r"(encoder|decoder)/layers_(\d+)/")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The sizes of a T5 network, under T5X's names.

    An MLP's tensors do not tell its activation: gated means T5 1.1's gelu, ungated T5 1.0's relu.
    """

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

    @property
    def gated(self) -> bool:
        """Whether the MLP multiplies two projections."""
        return len(self.mlp_activations) > 1


def infer_architecture(checkpoint: Checkpoint) -> Architecture:
    """Reads the sizes off the shapes of `checkpoint`'s parameters.

    Raises:
      ConversionError: they are not those of an unrolled T5, or do not fit together.
    """
    tensors = checkpoint.parameters()
    if not tensors:
        raise ConversionError(f"{checkpoint.path} has no parameters (no tensor under target/).")
    check_unrolled(checkpoint)

    vocab_size, emb_dim = _shape(checkpoint, tensors, "token_embedder/embedding", 2)
    num_heads, num_buckets = _shape(checkpoint, tensors, "encoder/relpos_bias/rel_embedding", 2)
    query = "encoder/layers_0/attention/query/kernel"
    _, joined = _shape(checkpoint, tensors, query, 2)
    if joined % num_heads:
        raise ConversionError(
            f"{checkpoint.path}: {query} has {joined} columns, which the {num_heads} heads of "
            "encoder/relpos_bias/rel_embedding do not divide."
        )
    gated = "encoder/layers_0/mlp/wi_0/kernel" in tensors
    wi = "encoder/layers_0/mlp/wi_0/kernel" if gated else "encoder/layers_0/mlp/wi/kernel"
    _, mlp_dim = _shape(checkpoint, tensors, wi, 2)
    return Architecture(
        vocab_size=vocab_size,
        emb_dim=emb_dim,
        num_heads=num_heads,
        head_dim=joined // num_heads,
        num_encoder_layers=_num_layers(tensors, "encoder"),
        num_decoder_layers=_num_layers(tensors, "decoder"),
        mlp_dim=mlp_dim,
        mlp_activations=checkpoint.described.get(
            "mlp_activations", ("gelu", "linear") if gated else ("relu",)
        ),
        logits_via_embedding="decoder/logits_dense/kernel" not in tensors,
        relative_attention_num_buckets=num_buckets,
    )


def check_unrolled(checkpoint: Checkpoint) -> None:
    """Checks that a checkpoint is not one of T5X's scanned network.

    Raises:
      ConversionError: it is; says what that is and what can be used.
    """
    scanned = ("encoder/encoder/", "decoder/decoder/")
    if any(name.startswith(scanned) for name in checkpoint.parameters()):
        raise ConversionError(
            f"{checkpoint.path} is a checkpoint of T5X's scanned network (scalable_t5, used for "
            "umT5): its layers are stacked along axis 1 of each array, and every layer has a "
            "relative position bias of its own. T5, mT5 and ByT5 share one bias among their "
            "layers, so this is another network, which is not supported yet. Use a checkpoint of "
            "the network that is not scanned (t5x/examples/t5), such as the released t5_1_1_* "
            "and mt5_*."
        )


def _shape(
    checkpoint: Checkpoint, tensors: dict[str, Tensor], name: str, rank: int
) -> tuple[int, ...]:
    if name not in tensors:
        raise ConversionError(
            f"{checkpoint.path} is not a T5 model: it has no target/{name} "
            f"(of its {len(tensors)} parameters the first is target/{min(tensors)})."
        )
    shape = tensors[name].shape
    if len(shape) != rank:
        raise ConversionError(
            f"{checkpoint.path}: target/{name} has shape {shape}; expected {rank} dimensions."
        )
    return shape


def _num_layers(tensors: dict[str, Tensor], side: str) -> int:
    matches = (_LAYER.match(name) for name in tensors)
    return 1 + max((int(m[2]) for m in matches if m and m[1] == side), default=-1)
