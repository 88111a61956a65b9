"""Maps T5X's parameters to Hugging Face's parameters.

The names differ, and so do some shapes. Kernels of linear layers have the shape (out, in) in
Hugging Face and (in, out) in T5X. Relative position biases have the shape (buckets, heads) in
Hugging Face and (heads, buckets) in T5X.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from conversion.families import Architecture
from conversion.tensor import Checkpoint, ConversionError

# T5X's name for an attention kernel → the name that Hugging Face and Mesh TensorFlow share.
ATTENTION = {"query": "q", "key": "k", "value": "v", "out": "o"}
EMBEDDING, LOGITS = "shared.weight", "lm_head.weight"

# Each sublayer has three names here: T5X's name for its norm, T5X's name for the sublayer itself,
# and the name that Hugging Face and Mesh TensorFlow share.
SUBLAYERS = {
    "encoder": (
        ("pre_attention_layer_norm", "attention", "SelfAttention"),
        ("pre_mlp_layer_norm", "mlp", "DenseReluDense"),
    ),
    "decoder": (
        ("pre_self_attention_layer_norm", "self_attention", "SelfAttention"),
        ("pre_cross_attention_layer_norm", "encoder_decoder_attention", "EncDecAttention"),
        ("pre_mlp_layer_norm", "mlp", "DenseReluDense"),
    ),
}


class Entry(NamedTuple):
    """A parameter: its names in T5X (without "target/") and Hugging Face, and its shape in T5X."""

    t5x: str
    hf: str
    shape: tuple[int, ...]

    @property
    def transposed(self) -> bool:
        """Whether Hugging Face stores the transpose, as it does for all matrices but EMBEDDING."""
        return len(self.shape) == 2 and self.hf != EMBEDDING

    @property
    def hf_shape(self) -> tuple[int, ...]:
        """The parameter's shape in Hugging Face."""
        return self.shape[::-1] if self.transposed else self.shape


def entries(sizes: Architecture) -> list[Entry]:
    """Returns the entries of all parameters of a network, grouped by kind and ordered by layer."""
    norm, into = (sizes.emb_dim,), (sizes.emb_dim, sizes.num_heads * sizes.head_dim)
    attention = {
        name: (hf, into[::-1] if name == "out" else into) for name, hf in ATTENTION.items()
    }
    wi = (sizes.emb_dim, sizes.mlp_dim)
    mlp = {name: (name, wi) for name in (("wi_0", "wi_1") if sizes.gated else ("wi",))}
    mlp["wo"] = ("wo", wi[::-1])

    embedding = (sizes.vocab_size, sizes.emb_dim)
    found = [Entry("token_embedder/embedding", EMBEDDING, embedding)]
    for side, sublayers in SUBLAYERS.items():
        buckets = (sizes.num_heads, sizes.relative_attention_num_buckets)
        num_layers = getattr(sizes, f"num_{side}_layers")
        # If the layers share the bias, Hugging Face stores it in the first layer.
        for i in range(num_layers if sizes.relpos_bias_per_layer else 1):
            layer = f"layers_{i}/" * sizes.relpos_bias_per_layer
            bias = f"{side}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight"
            found.append(Entry(f"{side}/{layer}relpos_bias/rel_embedding", bias, buckets))
        for n, (norm_name, t5x, hf) in enumerate(sublayers):
            rows: list[tuple[str, str, tuple[int, ...]]]
            rows = [(f"{norm_name}/scale", "layer_norm.weight", norm)]
            for name, (hf_name, shape) in (mlp if t5x == "mlp" else attention).items():
                rows.append((f"{t5x}/{name}/kernel", f"{hf}.{hf_name}.weight", shape))
            found += [
                Entry(f"{side}/layers_{i}/{t5x_row}", f"{side}.block.{i}.layer.{n}.{hf_row}", shape)
                for t5x_row, hf_row, shape in rows
                for i in range(num_layers)
            ]
        found.append(Entry(f"{side}/{side}_norm/scale", f"{side}.final_layer_norm.weight", norm))
    if not sizes.logits_via_embedding:
        found.append(Entry("decoder/logits_dense/kernel", LOGITS, embedding[::-1]))
    return found


def check_parameters(checkpoint: Checkpoint, expected: Iterable[Entry]) -> None:
    """Raises ConversionError unless the parameters have exactly the expected names and shapes."""
    check_shapes(
        {f"target/{name}": tensor.shape for name, tensor in checkpoint.parameters().items()},
        {f"target/{entry.t5x}": entry.shape for entry in expected},
        "expected",
        f"The parameters of {checkpoint.path} do not match a T5 network",
    )


def check_shapes(
    found: Mapping[str, tuple[int, ...]],
    wanted: Mapping[str, tuple[int, ...]],
    source: str,
    summary: str,
) -> None:
    """Raises ConversionError if tensors are missing, unexpected or of the wrong shape.

    Args:
      found: dict mapping the names of the tensors to their shapes.
      wanted: dict mapping the names of the expected tensors to their shapes.
      source: the text that precedes an expected shape in the message, such as "expected".
      summary: the beginning of the message.
    """
    problems = [
        *(f"missing: {name}, shape {wanted[name]}" for name in wanted.keys() - found.keys()),
        *(f"unexpected: {name}, shape {found[name]}" for name in found.keys() - wanted.keys()),
        *(
            f"wrong shape: {name} has {found[name]}; {source} {wanted[name]}"
            for name in wanted.keys() & found.keys()
            if found[name] != wanted[name]
        ),
    ]
    if problems:
        shown = "\n  ".join(sorted(problems)[:10])
        rest = f"\n  … {len(problems) - 10} more" if len(problems) > 10 else ""
        number = f"{len(problems)} problem{'s' * (len(problems) > 1)}"
        raise ConversionError(f"{summary} ({number}):\n  {shown}{rest}")
