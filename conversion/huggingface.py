"""Writes a checkpoint as a Hugging Face model directory."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from conversion import mapping
from conversion.architecture import Architecture, infer_architecture
from conversion.families import SPECIAL_IDS, published
from conversion.flax_writer import write_flax
from conversion.json_file import write_json
from conversion.model_card import model_card
from conversion.safetensors_file import write_sharded
from conversion.tensor import DTYPES, Checkpoint, ConversionError, check_dtype
from conversion.tokenizer import Tokenizer, write_tokenizer
from mtf.storage import UNFINISHED, AnyPath, StorePath, unfinished

ModelType = Literal["t5", "mt5", "umt5", "byt5"]

# T5's gelu is the tanh approximation, as is that of "gated-gelu".
FEED_FORWARD_PROJ = {
    ("relu",): "relu",
    ("gelu",): "gelu_new",
    ("silu",): "silu",
    ("gelu", "linear"): "gated-gelu",
    ("relu", "linear"): "gated-relu",
    ("silu", "linear"): "gated-silu",
}
# Field of config.json → field of Architecture.
SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "emb_dim",
    "d_kv": "head_dim",
    "d_ff": "mlp_dim",
    "num_layers": "num_encoder_layers",
    "num_decoder_layers": "num_decoder_layers",
    "num_heads": "num_heads",
}
LAYER_NORM_EPSILON = 1e-6
CARD = "README.md"
_MT5_VOCAB_SIZE = 250112
# The names of files of an export.
_OWN = re.compile(
    rf"(flax_)?model[-.].*|(\w*config|tokenizer)\.json|spiece\.model|{re.escape(UNFINISHED)}"
    rf"|{re.escape(CARD)}"
)


@dataclasses.dataclass
class Export:
    """An export; raises ConversionError if it is impossible, and reads no tensors.

    Attributes:
      checkpoint: checkpoint of an unrolled T5 1.0, 1.1, mT5, umT5 or ByT5.
      mlp_activations: activations of the MLP; None infers those of the published models.
      model_type: None means umt5 if each layer has a relative position bias, mt5 for mT5's
        vocabulary size, else t5. t5 and byt5 both use the class T5ForConditionalGeneration.
      tokenizer: tokenizer to write; None writes none.
      dtype: type of the written tensors, "float32" or "bfloat16".
      dropout_rate: value for config.json.
      relative_attention_max_distance: value for config.json.
      special_ids: ids of padding, EOS and the decoder's start, under config.json's names; None
        means those of the published model with the same sizes, else T5's.
      inputs_add_eos: whether the tokenizer appends EOS, as the inputs of training had it.
      max_shard_size: largest number of bytes of tensors in a file; not for "flax".
      weights: format of the weights: "safetensors" (PyTorch), or "flax" for transformers 4.
      allow_non_finite: whether parameters may contain NaN or infinity.
      is_assumed: whether the settings that tensors do not show are assumed, for the model card.
      architecture: architecture of the checkpoint.
      entries: the names and shapes of all parameters.
    """

    checkpoint: Checkpoint
    _: dataclasses.KW_ONLY
    mlp_activations: tuple[str, ...] | None = None
    model_type: ModelType | None = None
    tokenizer: Tokenizer | None = None
    dtype: str = "float32"
    dropout_rate: float = 0.1
    relative_attention_max_distance: int = 128
    special_ids: Mapping[str, int] | None = None
    inputs_add_eos: bool = True
    max_shard_size: int = 5 * 10**9
    weights: Literal["safetensors", "flax"] = "safetensors"
    allow_non_finite: bool = False
    is_assumed: bool = False
    architecture: Architecture = dataclasses.field(init=False)
    entries: list[mapping.Entry] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        if self.max_shard_size < 1:
            raise ConversionError(
                f"max_shard_size must be at least 1 byte, not {self.max_shard_size}."
            )
        sizes = infer_architecture(self.checkpoint)
        if self.mlp_activations is not None:
            sizes = dataclasses.replace(sizes, mlp_activations=self.mlp_activations)
        self.mlp_activations = sizes.mlp_activations
        if sizes.mlp_activations not in FEED_FORWARD_PROJ:
            own, *known = map(" × ".join, (sizes.mlp_activations, *FEED_FORWARD_PROJ))
            raise ConversionError(
                f"Hugging Face's T5 does not have the mlp_activations {own} of "
                f"{self.checkpoint.path}; expected one of {', '.join(known)}."
            )
        self.architecture, self.entries = sizes, mapping.entries(sizes)
        mapping.check_parameters(self.checkpoint, self.entries)
        if self.special_ids is None:
            found = published(sizes)
            self.special_ids = found[0].special_ids if found else SPECIAL_IDS
        if self.model_type is None:
            shared: ModelType = "mt5" if sizes.vocab_size == _MT5_VOCAB_SIZE else "t5"
            self.model_type = "umt5" if sizes.relpos_bias_per_layer else shared
        if (self.model_type == "umt5") != sizes.relpos_bias_per_layer:
            bias, fitting = (
                ("each layer has its own relative position bias", "umt5")
                if sizes.relpos_bias_per_layer
                else ("the layers of a stack share a relative position bias", "t5, mt5 or byt5")
            )
            raise ConversionError(
                f"{self.checkpoint.path} cannot be of model type {self.model_type}: {bias}. Use "
                f"model type {fitting} (--model-type)."
            )
        if self.model_type == "umt5" and self.weights == "flax":
            raise ConversionError(
                f"{self.checkpoint.path} is an umT5, which transformers does not have in Flax. Use "
                "--to hf."
            )
        if self.model_type == "mt5" and sizes.logits_via_embedding:
            raise ConversionError(
                f"{self.checkpoint.path} has no output projection (T5 1.0), so its logits are "
                "scaled, but MT5ForConditionalGeneration never scales them. Use model type t5 "
                "(--model-type t5)."
            )
        if self.tokenizer is not None and self.tokenizer.num_ids > sizes.vocab_size:
            raise ConversionError(
                f"The vocabulary has {self.tokenizer.num_ids} ids (with {self.tokenizer.extra_ids} "
                f"sentinels), but the embedding of {self.checkpoint.path} has only "
                f"{sizes.vocab_size} rows. Pass the vocabulary that the checkpoint was trained "
                "with (--vocabulary)."
            )

    @property
    def class_name(self) -> str:
        """Name of the class in `transformers` that loads the model."""
        prefixes = {"mt5": "MT5", "umt5": "UMT5"}
        return f"{prefixes.get(str(self.model_type), 'T5')}ForConditionalGeneration"


def write_export(export: Export, directory: AnyPath) -> None:
    """Writes the model's files to a directory, one tensor at a time.

    `config.json` is written last: without it, the directory is not complete. Raises ConversionError
    if a tensor cannot be read, or has NaN or infinity that are not allowed.
    """
    if isinstance(directory, StorePath):
        with unfinished(directory):
            _write_files(export, directory)
    else:
        _write_files(export, directory)


def _write_files(export: Export, directory: AnyPath) -> None:
    tensors = export.checkpoint.parameters()
    if not export.allow_non_finite:
        tensors = {name: tensor.finite() for name, tensor in tensors.items()}
    dtype = DTYPES[export.dtype]
    if export.weights == "flax":
        write_flax(directory, export.entries, tensors, dtype)
    else:
        views = [tensors[e.t5x].view(e.hf, transposed=e.transposed) for e in export.entries]
        write_sharded(directory, views, dtype, export.max_shard_size)
    # transformers 5 creates as many cache entries as the encoder has layers.
    deeper = export.architecture.num_decoder_layers > export.architecture.num_encoder_layers
    generation = {**(export.special_ids or SPECIAL_IDS), **({"use_cache": False} if deeper else {})}
    write_json(directory / "generation_config.json", generation)
    (directory / CARD).write_text(model_card(export), encoding="utf-8")
    if export.tokenizer is not None:
        is_umt5 = export.model_type == "umt5"
        add_eos = export.inputs_add_eos
        write_tokenizer(directory, export.tokenizer, add_eos=add_eos, is_umt5=is_umt5)
    write_json(directory / "config.json", config(export))


def config(export: Export) -> dict[str, Any]:
    """Returns the content of config.json for `transformers` 4 and 5."""
    sizes = export.architecture
    return {
        "architectures": [export.class_name],
        "model_type": "t5" if export.model_type == "byt5" else export.model_type,
        **{name: getattr(sizes, ours) for name, ours in SIZES.items()},
        "feed_forward_proj": FEED_FORWARD_PROJ[sizes.mlp_activations],
        "relative_attention_num_buckets": sizes.relative_attention_num_buckets,
        "relative_attention_max_distance": export.relative_attention_max_distance,
        "dropout_rate": export.dropout_rate,
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "use_cache": True,
        # In version 4, tie_word_embeddings also scales the logits by d_model**-0.5. Version 5
        # ignores it: it ties if the file has no projection, and scales by scale_decoder_outputs;
        # 5.0 scales unless that is given. umT5's are always scaled in version 5.
        "tie_word_embeddings": sizes.logits_via_embedding,
        "scale_decoder_outputs": sizes.logits_via_embedding,
        "dtype": export.dtype,
        "torch_dtype": export.dtype,
        **(export.special_ids or SPECIAL_IDS),
        # Without a version, 4.57 and 5.0 warn about tokenizers by Mistral.
        "transformers_version": "5.0.0",
    }


def check_output(directory: AnyPath) -> None:
    """Raises ConversionError unless `directory` is absent or empty.

    A directory in a store may have the files of an export that was interrupted.
    """
    is_link = isinstance(directory, Path) and directory.is_symlink()
    if directory.is_dir() and not is_link:
        names = {path.name for path in directory.iterdir()}
        if UNFINISHED in names:
            names = {name for name in names if not _OWN.fullmatch(name)}
        if names:
            raise ConversionError(f"{directory} is not empty; expected a new or empty directory.")
    elif directory.exists() or is_link:
        raise ConversionError(f"{directory} is not a directory; expected a new or empty one.")
