"""Writes a checkpoint as a Hugging Face model directory."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from conversion import mapping
from conversion.architecture import infer_architecture
from conversion.checksums import checking, write_checksums
from conversion.families import MT5_VOCAB_SIZE, SPECIAL_IDS, Architecture, describe, published
from conversion.formats import format_of
from conversion.json_file import write_json
from conversion.safetensors_file import write_sharded
from conversion.tensor import DTYPES, Checkpoint, ConversionError, check_dtype
from conversion.tokenizer import Tokenizer, write_tokenizer
from conversion.tokenizer_file import TokenizerFile
from mtf.storage import UNFINISHED, AnyPath, is_remote, unfinished

ModelType = Literal["t5", "mt5", "umt5", "byt5"]

# T5 uses the tanh approximation of gelu; so does "gated-gelu" in transformers.
FEED_FORWARD_PROJ = {
    ("relu",): "relu",
    ("gelu",): "gelu_new",
    ("silu",): "silu",
    ("gelu", "linear"): "gated-gelu",
    ("relu", "linear"): "gated-relu",
    ("silu", "linear"): "gated-silu",
}
# Field of config.json → field of `Architecture`.
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
# Matches the names of the files that an export writes.
_WRITTEN = re.compile(
    rf"model[-.].*|(\w*config|tokenizer|checksums)\.json|spiece\.model|{re.escape(UNFINISHED)}"
    rf"|{re.escape(CARD)}"
)


@dataclasses.dataclass
class Export:
    """The settings of an export to Hugging Face, which are checked without reading tensors.

    Attributes:
      checkpoint: the checkpoint of a T5 1.0, T5 1.1, mT5, umT5 or ByT5 model with unstacked
        layers.
      mlp_activations: the activations of the MLP, or None to infer them.
      model_type: the model type. None selects umt5 if each layer has a relative position bias, mt5
        if the vocabulary has mT5's size, and t5 otherwise. The types t5 and byt5 use the same
        class, T5ForConditionalGeneration.
      tokenizer: the tokenizer to write, or None to write none.
      dtype: the type of the written tensors, "float32" or "bfloat16".
      dropout_rate: the value for config.json.
      relative_attention_max_distance: the value for config.json.
      special_ids: the ids of padding, EOS and the decoder's start token, named as in config.json.
        None selects those of a `TokenizerFile`, or else of the published model with the same sizes,
        or else T5's.
      inputs_add_eos: whether inputs ended with EOS in training; if so, the tokenizer appends EOS.
      max_shard_size: the maximum size in bytes of the tensors in a file.
      allow_non_finite: whether parameters may contain NaN or infinity.
      is_assumed: whether `inputs_add_eos` is only assumed; if so, the model card mentions this.
      architecture: the architecture of the checkpoint.
      entries: the names and shapes of all parameters.

    Raises:
      ConversionError: the checkpoint cannot be exported with these settings.
    """

    checkpoint: Checkpoint
    _: dataclasses.KW_ONLY
    mlp_activations: tuple[str, ...] | None = None
    model_type: ModelType | None = None
    tokenizer: Tokenizer | TokenizerFile | None = None
    dtype: str = "float32"
    dropout_rate: float = 0.1
    relative_attention_max_distance: int = 128
    special_ids: Mapping[str, int] | None = None
    inputs_add_eos: bool = True
    max_shard_size: int = 5 * 10**9
    allow_non_finite: bool = False
    is_assumed: bool = False
    architecture: Architecture = dataclasses.field(init=False)
    entries: list[mapping.Entry] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        sizes = infer_architecture(self.checkpoint)
        if self.mlp_activations is not None:
            sizes = dataclasses.replace(sizes, mlp_activations=self.mlp_activations)
        self.mlp_activations = sizes.mlp_activations
        if sizes.mlp_activations not in FEED_FORWARD_PROJ:
            own, *known = map(" × ".join, (sizes.mlp_activations, *FEED_FORWARD_PROJ))
            raise ConversionError(
                f"Hugging Face's T5 does not support the mlp_activations {own} of "
                f"{self.checkpoint.path}; expected one of {', '.join(known)}."
            )
        self.architecture, self.entries = sizes, mapping.entries(sizes)
        mapping.check_parameters(self.checkpoint, self.entries)
        if isinstance(self.tokenizer, TokenizerFile):
            self.special_ids = {**self.tokenizer.special_ids, **(self.special_ids or {})}
        elif self.special_ids is None:
            found = published(sizes)
            self.special_ids = found[0].special_ids if found else SPECIAL_IDS
        if self.model_type is None:
            shared: ModelType = "mt5" if sizes.vocab_size == MT5_VOCAB_SIZE else "t5"
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
        """The name of the `transformers` class that loads the model."""
        prefixes = {"mt5": "MT5", "umt5": "UMT5"}
        return f"{prefixes.get(str(self.model_type), 'T5')}ForConditionalGeneration"


def write_export(export: Export, directory: AnyPath) -> None:
    """Writes the model's files to a directory, with limited memory use.

    `config.json` is written after the weights, so a directory without it is incomplete. Raises
    ConversionError if a tensor cannot be read, if a file of the source does not match its checksum,
    or if a tensor contains NaN or infinity and `allow_non_finite` is False.
    """
    with unfinished(directory):
        with checking(export.checkpoint.path):
            _write_files(export, directory)
        write_checksums(directory)


def _write_files(export: Export, directory: AnyPath) -> None:
    tensors = export.checkpoint.parameters()
    if not export.allow_non_finite:
        tensors = {name: tensor.finite() for name, tensor in tensors.items()}
    views = [tensors[e.t5x].view(e.hf, transposed=e.transposed) for e in export.entries]
    write_sharded(directory, views, DTYPES[export.dtype], export.max_shard_size)
    # transformers 5 creates one cache entry per encoder layer, too few for a deeper decoder.
    deeper = export.architecture.num_decoder_layers > export.architecture.num_encoder_layers
    generation = {**(export.special_ids or SPECIAL_IDS), **({"use_cache": False} if deeper else {})}
    write_json(directory / "generation_config.json", generation)
    (directory / CARD).write_text(model_card(export), encoding="utf-8")
    if export.tokenizer is not None:
        is_umt5 = export.model_type == "umt5"
        add_eos = export.inputs_add_eos
        if isinstance(export.tokenizer, TokenizerFile):
            export.tokenizer.write(directory, add_eos=add_eos)
        else:
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
        # In transformers 4, tie_word_embeddings also scales the logits by d_model**-0.5. Version 5
        # ignores this field: the embeddings are tied if the file contains no projection, and the
        # logits are scaled if scale_decoder_outputs is true (in 5.0, also if it is missing). The
        # logits of umT5 are always scaled.
        "tie_word_embeddings": sizes.logits_via_embedding,
        "scale_decoder_outputs": sizes.logits_via_embedding,
        "dtype": export.dtype,
        "torch_dtype": export.dtype,
        **(export.special_ids or SPECIAL_IDS),
        # Without this field, versions 4.57 and 5.0 print a warning about Mistral's tokenizers.
        "transformers_version": "5.0.0",
    }


def check_output(directory: AnyPath) -> AnyPath:
    """Returns `directory`; raises ConversionError if it exists and is not an empty directory.

    A remote directory may contain the files of an interrupted export.
    """
    is_link = not is_remote(directory) and directory.is_symlink()
    if directory.is_dir() and not is_link:
        names = {path.name for path in directory.iterdir()}
        if UNFINISHED in names:
            names = {name for name in names if not _WRITTEN.fullmatch(name)}
        if names:
            raise ConversionError(f"{directory} is not empty; expected a new or empty directory.")
    elif directory.exists() or is_link:
        raise ConversionError(f"{directory} is not a directory; expected a new or empty one.")
    return directory


def model_card(export: Export) -> str:
    """Returns the text of the model card, with the source of the weights and the use of EOS."""
    checkpoint = export.checkpoint
    step = "" if checkpoint.step is None else f", step {checkpoint.step:,}"
    parameters = sum(math.prod(entry.shape) for entry in export.entries)
    assumed = " The use of EOS is assumed, as in most T5 models." if export.is_assumed else ""
    if export.inputs_add_eos:
        eos = "In training, inputs ended with EOS (`</s>`), which the tokenizer appends."
    else:
        eos = (
            "In training, inputs did not end with EOS (`</s>`). The tokenizer in this directory "
            "does not append EOS; pass `add_special_tokens=False` to others. Targets end with EOS."
        )
    tokenizer = "" if export.tokenizer else "This directory has no tokenizer. "
    return f"""\
---
library_name: transformers
tags:
- {export.model_type}
---

# {checkpoint.source.rpartition("/")[2]}

These weights were converted by `python -m mtf.convert`.

* Source: `{checkpoint.source}` ({format_of(checkpoint).title}{step})
* Class: `{export.class_name}` of `transformers`
* Parameters: {parameters:,}, {export.dtype}
* Network: {describe(export.architecture)}
* Activations of the MLP: {" × ".join(export.architecture.mlp_activations)}

{tokenizer}{eos}{assumed}
"""
