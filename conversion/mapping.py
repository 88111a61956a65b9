"""What each of T5X's parameters is called in Hugging Face's T5, and in what form: a row a tensor.

A Hugging Face linear layer holds (out, in) where T5X holds (in, out); its relative position bias
is (buckets, heads) where T5X's is (heads, buckets). Nothing else differs, vocabulary rows included.
Read left to right the table exports, right to left it imports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

from conversion.architecture import Architecture
from conversion.errors import ConversionError
from conversion.tensor import Checkpoint

Which = Literal["always", "gated", "ungated", "untied"]


class Row(NamedTuple):
    """One parameter, of every layer where the names have an `{i}`.

    Attributes:
      t5x: T5X's name, without "target/".
      hf: the name in `T5ForConditionalGeneration`.
      shape: T5X's, as fields of Architecture; "joined_kv" is heads × head_dim.
      transposed: the two hold each other's transpose.
      which: in which architectures it is.
    """

    t5x: str
    hf: str
    shape: tuple[str, ...]
    transposed: bool = False
    which: Which = "always"


_NORM = ("emb_dim",)
_IN = ("emb_dim", "joined_kv")
_OUT = ("joined_kv", "emb_dim")
_WI = ("emb_dim", "mlp_dim")
_WO = ("mlp_dim", "emb_dim")
_RELPOS = ("num_heads", "relative_attention_num_buckets")

_E, _EB = "encoder/layers_{i}", "encoder.block.{i}"
_D, _DB = "decoder/layers_{i}", "decoder.block.{i}"
_EA, _EBA = f"{_E}/attention", f"{_EB}.layer.0.SelfAttention"
_EM, _EBM = f"{_E}/mlp", f"{_EB}.layer.1.DenseReluDense"
_DS, _DBS = f"{_D}/self_attention", f"{_DB}.layer.0.SelfAttention"
_DC, _DBC = f"{_D}/encoder_decoder_attention", f"{_DB}.layer.1.EncDecAttention"
_DM, _DBM = f"{_D}/mlp", f"{_DB}.layer.2.DenseReluDense"
_BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"

# fmt: off
ROWS = (
    Row("token_embedder/embedding", "shared.weight", ("vocab_size", "emb_dim")),

    Row("encoder/relpos_bias/rel_embedding", f"encoder.{_BIAS}", _RELPOS, True),
    Row(f"{_E}/pre_attention_layer_norm/scale", f"{_EB}.layer.0.layer_norm.weight", _NORM),
    Row(f"{_EA}/query/kernel", f"{_EBA}.q.weight", _IN, True),
    Row(f"{_EA}/key/kernel", f"{_EBA}.k.weight", _IN, True),
    Row(f"{_EA}/value/kernel", f"{_EBA}.v.weight", _IN, True),
    Row(f"{_EA}/out/kernel", f"{_EBA}.o.weight", _OUT, True),
    Row(f"{_E}/pre_mlp_layer_norm/scale", f"{_EB}.layer.1.layer_norm.weight", _NORM),
    Row(f"{_EM}/wi/kernel", f"{_EBM}.wi.weight", _WI, True, "ungated"),
    Row(f"{_EM}/wi_0/kernel", f"{_EBM}.wi_0.weight", _WI, True, "gated"),
    Row(f"{_EM}/wi_1/kernel", f"{_EBM}.wi_1.weight", _WI, True, "gated"),
    Row(f"{_EM}/wo/kernel", f"{_EBM}.wo.weight", _WO, True),
    Row("encoder/encoder_norm/scale", "encoder.final_layer_norm.weight", _NORM),

    Row("decoder/relpos_bias/rel_embedding", f"decoder.{_BIAS}", _RELPOS, True),
    Row(f"{_D}/pre_self_attention_layer_norm/scale", f"{_DB}.layer.0.layer_norm.weight", _NORM),
    Row(f"{_DS}/query/kernel", f"{_DBS}.q.weight", _IN, True),
    Row(f"{_DS}/key/kernel", f"{_DBS}.k.weight", _IN, True),
    Row(f"{_DS}/value/kernel", f"{_DBS}.v.weight", _IN, True),
    Row(f"{_DS}/out/kernel", f"{_DBS}.o.weight", _OUT, True),
    Row(f"{_D}/pre_cross_attention_layer_norm/scale", f"{_DB}.layer.1.layer_norm.weight", _NORM),
    Row(f"{_DC}/query/kernel", f"{_DBC}.q.weight", _IN, True),
    Row(f"{_DC}/key/kernel", f"{_DBC}.k.weight", _IN, True),
    Row(f"{_DC}/value/kernel", f"{_DBC}.v.weight", _IN, True),
    Row(f"{_DC}/out/kernel", f"{_DBC}.o.weight", _OUT, True),
    Row(f"{_D}/pre_mlp_layer_norm/scale", f"{_DB}.layer.2.layer_norm.weight", _NORM),
    Row(f"{_DM}/wi/kernel", f"{_DBM}.wi.weight", _WI, True, "ungated"),
    Row(f"{_DM}/wi_0/kernel", f"{_DBM}.wi_0.weight", _WI, True, "gated"),
    Row(f"{_DM}/wi_1/kernel", f"{_DBM}.wi_1.weight", _WI, True, "gated"),
    Row(f"{_DM}/wo/kernel", f"{_DBM}.wo.weight", _WO, True),
    Row("decoder/decoder_norm/scale", "decoder.final_layer_norm.weight", _NORM),
    Row("decoder/logits_dense/kernel", "lm_head.weight", ("emb_dim", "vocab_size"), True, "untied"),
)
# fmt: on


class Entry(NamedTuple):
    """A row for one tensor of one network: both names, and T5X's shape."""

    t5x: str
    hf: str
    shape: tuple[int, ...]
    transposed: bool

    @property
    def hf_shape(self) -> tuple[int, ...]:
        """The shape at Hugging Face."""
        return self.shape[::-1] if self.transposed else self.shape

    def convert(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """T5X's array to Hugging Face's, and the other way round: each undoes the other."""
        return array.T if self.transposed else array


def entries(architecture: Architecture) -> list[Entry]:
    """Every parameter of a network, in the order of the layers."""
    sizes = {
        **vars(architecture),
        "joined_kv": architecture.num_heads * architecture.head_dim,
    }
    present = {
        "always": True,
        "gated": architecture.gated,
        "ungated": not architecture.gated,
        "untied": not architecture.logits_via_embedding,
    }
    depths = {
        "encoder": architecture.num_encoder_layers,
        "decoder": architecture.num_decoder_layers,
    }
    found = []
    for row in ROWS:
        if not present[row.which]:
            continue
        layers = range(depths[row.t5x[:7]]) if "{i}" in row.t5x else range(1)
        shape = tuple(sizes[name] for name in row.shape)
        found += [
            Entry(row.t5x.format(i=i), row.hf.format(i=i), shape, row.transposed) for i in layers
        ]
    return found


def hf_name(t5x_name: str) -> str:
    """Returns the Hugging Face name of T5X's parameter.

    Raises:
      ConversionError: T5 has no such parameter.
    """
    return _translate(t5x_name, ((row.t5x, row.hf) for row in ROWS))


def t5x_name(hf_name: str) -> str:
    """T5X's name of a Hugging Face parameter; the inverse of `hf_name`."""
    return _translate(hf_name, ((row.hf, row.t5x) for row in ROWS))


def _translate(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    for source, destination in pairs:
        match = re.fullmatch(re.escape(source).replace(r"\{i\}", r"(\d+)"), name)
        if match:
            return destination.format(i=match[1] if match.groups() else "")
    raise ConversionError(f"T5 has no parameter named {name}.")


def check_parameters(checkpoint: Checkpoint, expected: Iterable[Entry]) -> None:
    """Checks that the checkpoint's parameters are exactly the expected ones.

    Raises:
      ConversionError: some are missing, unexpected or of another shape; all are counted, the
        first few named.
    """
    tensors = checkpoint.parameters()
    wanted = {entry.t5x: entry.shape for entry in expected}
    problems = [
        *(f"missing: target/{name}, shape {wanted[name]}" for name in wanted.keys() - tensors),
        *(
            f"unexpected: target/{name}, shape {tensors[name].shape}"
            for name in tensors.keys() - wanted
        ),
        *(
            f"wrong shape: target/{name} is {tensors[name].shape}; expected {wanted[name]}"
            for name in wanted.keys() & tensors
            if tensors[name].shape != wanted[name]
        ),
    ]
    if problems:
        shown = "\n  ".join(sorted(problems)[:10])
        rest = f"\n  … {len(problems) - 10} more" if len(problems) > 10 else ""
        raise ConversionError(
            f"The parameters of {checkpoint.path} are not those of one T5 network "
            f"({len(problems)} of {len(wanted)}):\n  {shown}{rest}"
        )
