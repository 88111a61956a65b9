"""Settings of the network and its loss, with T5X's field names. Does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from mtf.base.checks import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    RATE,
    check_fields,
    check_patterns,
    one_of,
)
from mtf.base.errors import UserError

RematPolicy: TypeAlias = Literal["none", "minimal", "full", "auto"]

ACTIVATIONS = ("relu", "gelu", "silu", "linear")

# A function of (logits, batch, weights) that returns (loss, metrics); see docs/extending.md.
LossFunction: TypeAlias = Callable[..., Any]

FP16_REFUSED = (
    "float16 is not supported, because T5's activations overflow its range (up to 65,504) and "
    "training produces NaN. Use 'float32', or 'bfloat16', which has the same range as float32."
)


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (LoRA), which replace a kernel W with W + alpha / rank · A B.

    Only A and B are trained (Hu et al. 2021). As in PEFT, A is initialized uniformly in
    ±1/√(number of rows of W), and B is initialized with zeros.

    Attributes:
      rank: the number of columns of A and of rows of B.
      alpha: the numerator of the factor alpha / rank.
      dropout_rate: the dropout rate for the input of A.
      targets: regular expressions that match the full names of kernels, without the layer number,
        such as "encoder/attention/query", "decoder/self_attention/value",
        "decoder/encoder_decoder_attention/out", "encoder/mlp/wi_0" and "decoder/mlp/wo".
    """

    rank: int = 8
    alpha: float = 8.0
    dropout_rate: float = 0.0
    targets: tuple[str, ...] = (".*/query", ".*/value")

    def __post_init__(self) -> None:
        check_fields(self, AT_LEAST_ONE, "rank")
        check_fields(self, POSITIVE, "alpha")
        check_fields(self, RATE, "dropout_rate")
        check_patterns("targets", self.targets)
        if not self.targets:
            raise UserError("targets is empty; expected patterns such as '.*/query'.")


@dataclasses.dataclass(frozen=True)
class T5Config:
    """An encoder-decoder Transformer of the T5 family (T5X: `examples/t5/network.py`).

    The defaults are those of T5 1.1, which uses gated GELU activations and a separate output
    projection. T5 1.0 uses `mlp_activations=("relu",)` and `logits_via_embedding=True`.

    Attributes:
      vocab_size: the number of rows of the embedding, including padding.
      emb_dim: the size of the embeddings and of the hidden states (d_model).
      num_heads: the number of attention heads; num_heads * head_dim may differ from `emb_dim`.
      head_dim: the size of an attention head (d_kv).
      num_encoder_layers: the number of encoder layers.
      num_decoder_layers: the number of decoder layers; in ByT5, a third of `num_encoder_layers`.
      mlp_dim: the size of the hidden layer in the feed-forward blocks (d_ff).
      mlp_activations: the activation of each input projection. The activated outputs are
        multiplied.
      dropout_rate: the dropout rate for embeddings, attention weights, MLP activations and residual
        branches.
      logits_via_embedding: whether the output projection uses the embedding, scaled by
        emb_dim**-0.5, instead of a separate kernel.
      dtype: the dtype of the activations. Parameters, norms, softmax and logits are float32.
      relative_attention_num_buckets: the number of buckets for relative positions.
      relative_attention_max_distance: the distance beyond which all positions share one bucket.
      relpos_bias_per_layer: whether each layer has its own relative position bias, as in umT5 and
        T5X's `scalable_t5`; otherwise, the layers of a stack share one bias.
      scan_layers: whether to stack the layers and run them with `lax.scan`, which compiles faster
        and is needed for XXL. Otherwise, the layers are unrolled, and steps are faster. Checkpoints
        do not depend on this setting.
      remat_policy: the activations that the backward pass recomputes: "none", "minimal" (all except
        attention outputs and products with parameters), "full" (entire layers) or "auto" ("none" on
        CPUs and "minimal" on GPUs and TPUs, or the next of these that fits into memory by
        estimate). Attention weights are always recomputed.
      attention: how attention is computed, except in decoding steps: "xla", "pallas" (kernels for
        TPUs, which CPUs interpret; training refuses shapes without kernels) or "auto" (kernels on
        TPUs for shapes that have them, otherwise XLA).
      lora: the LoRA adapters, which are the only trained parameters; None for no adapters.
    """

    vocab_size: int
    emb_dim: int
    num_heads: int
    head_dim: int
    num_encoder_layers: int
    num_decoder_layers: int
    mlp_dim: int
    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    dropout_rate: float = 0.1
    logits_via_embedding: bool = False
    dtype: Literal["float32", "bfloat16"] = dataclasses.field(
        default="bfloat16",
        metadata={"refused": dict.fromkeys(("float16", "fp16", "half"), FP16_REFUSED)},
    )
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    relpos_bias_per_layer: bool = False
    scan_layers: bool = dataclasses.field(default=True, metadata={"on_resume": "may change"})
    remat_policy: RematPolicy = dataclasses.field(
        default="none", metadata={"on_resume": "may change"}
    )
    attention: Literal["auto", "xla", "pallas"] = dataclasses.field(
        default="auto", metadata={"on_resume": "may change"}
    )
    lora: LoraConfig | None = None

    def __post_init__(self) -> None:
        layers = ("num_encoder_layers", "num_decoder_layers")
        sizes = ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim")
        check_fields(self, AT_LEAST_ONE, *sizes, *layers)
        # More layers would not fit into memory, and describing them would take a long time.
        check_fields(self, ("at most 10,000", lambda n: n <= 10_000), *layers)
        check_fields(self, RATE, "dropout_rate")
        if self.dtype in ("float16", "fp16", "half"):
            raise UserError(FP16_REFUSED)
        check_fields(self, one_of("float32", "bfloat16"), "dtype")
        check_fields(self, one_of("none", "minimal", "full", "auto"), "remat_policy")
        check_fields(self, one_of("auto", "xla", "pallas"), "attention")
        known = (f"names among {', '.join(ACTIVATIONS)}", lambda x: x and {*x} <= {*ACTIVATIONS})
        check_fields(self, known, "mlp_activations")
        check_fields(self, ("at least 4", lambda n: n >= 4), "relative_attention_num_buckets")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A network with its loss (T5X: `models.EncoderDecoderModel`).

    Attributes:
      network: the architecture.
      z_loss: the weight of the term log²Z, which keeps the logits from drifting.
      label_smoothing: the probability mass that is distributed over the incorrect tokens.
      loss_normalizing_factor: the number by which the summed loss is divided, None (no division),
        "NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS" or "AVERAGE_PER_SEQUENCE" (all sequences
        have equal weight, even in packed rows).
      loss_fn: a function that computes the loss from the logits. It replaces the cross-entropy with
        `z_loss` and `label_smoothing`; see docs/extending.md.
    """

    network: T5Config
    z_loss: float = 1e-4
    label_smoothing: float = 0.0
    loss_normalizing_factor: (
        float
        | Literal["NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"]
        | None
    ) = None
    loss_fn: LossFunction | None = None

    def __post_init__(self) -> None:
        check_fields(self, RATE, "label_smoothing")
        check_fields(self, NOT_NEGATIVE, "z_loss")
        special = ("NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE")
        if not isinstance(self.loss_normalizing_factor, str):
            check_fields(self, POSITIVE, "loss_normalizing_factor", optional=True)
        elif self.loss_normalizing_factor not in special:
            raise UserError(
                f"loss_normalizing_factor must be a number, None, or one of {', '.join(special)}, "
                f"not {self.loss_normalizing_factor!r}."
            )
