"""Settings of the network and its loss, with T5X's field names. Imports no JAX."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from mtf.checks import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    RATE,
    check_fields,
    check_patterns,
    one_of,
)
from mtf.errors import UserError

ACTIVATIONS = ("relu", "gelu", "silu", "linear")

# (logits, batch, weights) → (loss, metrics); see docs/extending.md.
LossFunction: TypeAlias = Callable[..., Any]

FP16_REFUSED = (
    "float16 is not supported: T5's activations overflow its range (at most 65,504) and training "
    "produces NaN. Use 'bfloat16', which has float32's range, or 'float32'."
)


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (LoRA, Hu et al. 2021): a kernel W becomes W + alpha / rank · A B.

    Only A and B are trained. A is initialized as in PEFT, uniformly in ±1/√(number of rows of W),
    and B with zeros.

    Attributes:
      rank: number of columns of A and of rows of B.
      alpha: divided by `rank`, the factor of A B.
      dropout_rate: dropout of what is multiplied by A.
      targets: regular expressions that match whole names of kernels, the same in each layer:
        "encoder/attention/query", "decoder/self_attention/value",
        "decoder/encoder_decoder_attention/out", "encoder/mlp/wi_0", "decoder/mlp/wo" and the like.
    """

    rank: int = 8
    alpha: float = 8.0
    dropout_rate: float = 0.0
    targets: tuple[str, ...] = (".*/query", ".*/value")

    def __post_init__(self) -> None:
        check_fields(self, AT_LEAST_ONE, "rank")
        check_fields(self, POSITIVE, "alpha")
        check_fields(self, RATE, "dropout_rate")
        check_patterns(self, "targets")
        if not self.targets:
            raise UserError("targets is empty; expected patterns such as '.*/query'.")

    def adapts(self, kernel: str) -> bool:
        """Returns whether a kernel has an adapter, by its name without a layer."""
        return any(re.fullmatch(pattern, kernel) for pattern in self.targets)


@dataclasses.dataclass(frozen=True)
class T5Config:
    """An encoder-decoder Transformer of the T5 family (T5X: `examples/t5/network.py`).

    The defaults are those of T5 1.1: gated GELU and a separate output projection. T5 1.0 has
    `mlp_activations=("relu",)` and `logits_via_embedding=True`.

    Attributes:
      vocab_size: number of rows of the embedding, including padding.
      emb_dim: d_model.
      num_heads: number of attention heads; num_heads * head_dim may differ from `emb_dim`.
      head_dim: d_kv.
      num_encoder_layers: depth of the encoder.
      num_decoder_layers: depth of the decoder; ByT5's is a third of the encoder's.
      mlp_dim: d_ff.
      mlp_activations: one activation per projection; the results are multiplied ("gated").
      dropout_rate: dropout of embeddings, attention weights, MLP activations and residual branches.
      logits_via_embedding: whether the output projection is the embedding, scaled by emb_dim**-0.5.
      dtype: dtype of the activations. Parameters, norms, softmax and logits are float32.
      relative_attention_num_buckets: number of rows of the relative position bias.
      relative_attention_max_distance: distance from which all distances share a bucket.
      relpos_bias_per_layer: whether each layer has its own relative position bias, as in umT5 and
        T5X's `scalable_t5`; otherwise, the layers of a stack share one.
      scan_layers: whether to stack layers and run them with `lax.scan` (compiles faster; needed for
        XXL) instead of one after another (runs faster on CPU). Checkpoints are the same.
      remat_policy: what the backward pass recomputes besides the weights of attention, which it
        always recomputes: "none", "minimal" (all but attention and the products with parameters)
        or "full" (each layer as a whole).
      lora: adapters, which alone are trained; None: no adapters.
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
    remat_policy: Literal["none", "minimal", "full"] = dataclasses.field(
        default="none", metadata={"on_resume": "may change"}
    )
    lora: LoraConfig | None = None

    def __post_init__(self) -> None:
        layers = ("num_encoder_layers", "num_decoder_layers")
        sizes = ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim")
        check_fields(self, AT_LEAST_ONE, *sizes, *layers)
        # More layers would take long to describe before the check of memory refuses them.
        check_fields(self, ("at most 10,000", lambda n: n <= 10_000), *layers)
        check_fields(self, RATE, "dropout_rate")
        if self.dtype in ("float16", "fp16", "half"):
            raise UserError(FP16_REFUSED)
        check_fields(self, one_of("float32", "bfloat16"), "dtype")
        check_fields(self, one_of("none", "minimal", "full"), "remat_policy")
        known = (f"names among {', '.join(ACTIVATIONS)}", lambda x: x and {*x} <= {*ACTIVATIONS})
        check_fields(self, known, "mlp_activations")
        check_fields(self, ("at least 4", lambda n: n >= 4), "relative_attention_num_buckets")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A network with its loss (T5X: `models.EncoderDecoderModel`).

    Attributes:
      network: the architecture.
      z_loss: weight of log²Z, which keeps the logits from drifting.
      label_smoothing: probability mass distributed over the other tokens.
      loss_normalizing_factor: divisor of the summed loss: a number, None (no division),
        "NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", or "AVERAGE_PER_SEQUENCE" (every
        sequence has the same weight, also in packed rows).
      loss_fn: a function of the logits, used instead of the cross-entropy with `z_loss` and
        `label_smoothing`; see docs/extending.md.
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
