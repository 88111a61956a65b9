"""What defines a T5 network, in T5X's field names. Imports no jax."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from mtf.errors import UserError, check_at_least_one

# Far more than any machine trains; each is described by itself before memory is looked at.
MAX_LAYERS = 10_000

ACTIVATIONS = ("relu", "gelu", "silu", "linear")

# Why fp16 is not among the dtypes.
FP16_REFUSED = (
    "float16 is not supported: T5's activations overflow its range (largest value 65,504) and "
    "training gives NaN. Use 'bfloat16', which has float32's range, or 'float32'."
)


@dataclasses.dataclass(frozen=True)
class T5Config:
    """An encoder-decoder Transformer of the T5 family (T5X: `examples/t5/network.py`).

    The defaults are T5 1.1's: gated GELU and an output projection of its own. T5 1.0 has
    `mlp_activations=("relu",)` and `logits_via_embedding=True`.

    Attributes:
      vocab_size: rows of the embedding, padding rows included.
      emb_dim: d_model.
      num_heads: attention heads; `head_dim` each, which need not multiply to `emb_dim`.
      head_dim: d_kv.
      num_encoder_layers: depth of the encoder.
      num_decoder_layers: depth of the decoder; ByT5's is a third of the encoder's.
      mlp_dim: d_ff.
      mlp_activations: one activation a projection; the results are multiplied ("gated").
      dropout_rate: of embeddings, attention weights, MLP activations and every residual branch.
      logits_via_embedding: the output projection is the embedding, scaled by emb_dim**-0.5.
      dtype: of the activations. Parameters, norms, softmax and logits are float32.
      relative_attention_num_buckets: rows of the relative position bias.
      relative_attention_max_distance: beyond it all distances share a bucket.
      scan_layers: layers are stacked and run by `lax.scan` (compiles fast; needed for XXL)
        instead of one after another (runs faster on CPU). Checkpoints are the same.
      remat_policy: what the backward pass recomputes: "none", "minimal" (all but the results of
        matrix products) or "full" (each layer as a whole).
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
    scan_layers: bool = dataclasses.field(default=True, metadata={"on_resume": "may change"})
    remat_policy: Literal["none", "minimal", "full"] = dataclasses.field(
        default="none", metadata={"on_resume": "may change"}
    )

    def __post_init__(self) -> None:
        layers = ("num_encoder_layers", "num_decoder_layers")
        sizes = ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim")
        check_at_least_one(self, *sizes, *layers)
        for field in layers:
            if getattr(self, field) > MAX_LAYERS:
                raise UserError(
                    f"{field} must be at most {MAX_LAYERS:,}, not {getattr(self, field):,}."
                )
        if not 0.0 <= self.dropout_rate < 1.0:
            raise UserError(f"dropout_rate must be in [0, 1), not {self.dropout_rate}.")
        if self.dtype in ("float16", "fp16", "half"):
            raise UserError(FP16_REFUSED)
        if self.dtype not in ("float32", "bfloat16"):
            raise UserError(f"dtype must be 'float32' or 'bfloat16', not {self.dtype!r}.")
        unknown = [name for name in self.mlp_activations if name not in ACTIVATIONS]
        if unknown or not self.mlp_activations:
            raise UserError(
                f"mlp_activations must be names among {', '.join(ACTIVATIONS)}, "
                f"not {self.mlp_activations!r}."
            )
        if self.remat_policy not in ("none", "minimal", "full"):
            raise UserError(
                f"remat_policy must be 'none', 'minimal' or 'full', not {self.remat_policy!r}."
            )
        if self.relative_attention_num_buckets < 4:
            raise UserError(
                "relative_attention_num_buckets must be at least 4, "
                f"not {self.relative_attention_num_buckets}."
            )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A network with its loss (T5X: `models.EncoderDecoderModel`).

    Attributes:
      network: the architecture.
      z_loss: weight of log²Z, which keeps the logits from drifting.
      label_smoothing: probability mass spread over the other tokens.
      loss_normalizing_factor: what the summed loss is divided by: None (nothing), a number,
        "NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", or "AVERAGE_PER_SEQUENCE" (every
        sequence counts the same, also inside a packed row).
    """

    network: T5Config
    z_loss: float = 1e-4
    label_smoothing: float = 0.0
    loss_normalizing_factor: (
        float
        | Literal["NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"]
        | None
    ) = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UserError(f"label_smoothing must be in [0, 1), not {self.label_smoothing}.")
        if not 0 <= self.z_loss < math.inf:
            raise UserError(f"z_loss must be a finite number and not negative, not {self.z_loss}.")
        factor = self.loss_normalizing_factor
        special = ("NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE")
        if isinstance(factor, str) and factor not in special:
            raise UserError(
                f"loss_normalizing_factor must be a number, None, or one of {', '.join(special)}, "
                f"not {factor!r}."
            )
        if isinstance(factor, (int, float)) and not 0 < factor < math.inf:
            raise UserError(f"loss_normalizing_factor must be positive, not {factor}.")
