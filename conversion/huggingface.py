"""Writing a checkpoint as a Hugging Face model directory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from conversion import mapping, safetensors_file
from conversion.architecture import Architecture, infer_architecture
from conversion.errors import ConversionError
from conversion.tensor import Checkpoint, Tensor
from conversion.tokenizer import Tokenizer, check_size, write_tokenizer

ModelType = Literal["t5", "mt5", "byt5"]

MT5_VOCAB_SIZE = 250112
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
DEFAULT_SHARD_SIZE = 5 * 10**9


@dataclasses.dataclass(frozen=True)
class Export:
    """A checked plan of what will be written.

    Attributes:
      checkpoint: the source.
      architecture: its sizes.
      entries: a tensor each.
      model_type: t5 and byt5 are the class T5ForConditionalGeneration.
      tokenizer: None writes no tokenizer.
      dtype: "float32" or "bfloat16".
      dropout_rate: for config.json; the tensors do not tell.
      relative_attention_max_distance: likewise.
      inputs_add_eos: whether the tokenizer appends end of sequence.
      max_shard_size: bytes of tensors in a file.
    """

    checkpoint: Checkpoint
    architecture: Architecture
    entries: list[mapping.Entry]
    model_type: ModelType
    tokenizer: Tokenizer | None
    dtype: str
    dropout_rate: float
    relative_attention_max_distance: int
    inputs_add_eos: bool
    max_shard_size: int

    @property
    def class_name(self) -> str:
        """The class of `transformers` that loads the result."""
        prefix = "MT5" if self.model_type == "mt5" else "T5"
        return f"{prefix}ForConditionalGeneration"

    @property
    def num_parameters(self) -> int:
        """How many numbers the tensors hold."""
        return sum(int(np.prod(entry.shape)) for entry in self.entries)


def plan_export(
    checkpoint: Checkpoint,
    *,
    mlp_activations: tuple[str, ...] | None = None,
    model_type: ModelType | None = None,
    tokenizer: Tokenizer | None = None,
    dtype: str = "float32",
    dropout_rate: float = 0.1,
    relative_attention_max_distance: int = 128,
    inputs_add_eos: bool = True,
    max_shard_size: int = DEFAULT_SHARD_SIZE,
) -> Export:
    """Checks that `checkpoint` can be exported so; reads no tensor and writes nothing.

    Args:
      checkpoint: T5 1.0, 1.1, mT5 or ByT5, unrolled.
      mlp_activations: where known; None means what the published models of that shape have.
      model_type: None means mt5 for mT5's vocabulary size, else t5.
      tokenizer: None writes none.
      dtype: of the tensors written.
      dropout_rate: noted in config.json.
      relative_attention_max_distance: noted in config.json.
      inputs_add_eos: whether inputs ended with end of sequence in training; the tokenizer then
        appends it.
      max_shard_size: bytes.

    Raises:
      ConversionError: parameters missing, unexpected or of another shape; a vocabulary larger
        than the embedding; a type that T5's values do not fit.
    """
    if dtype not in DTYPES:
        reason = (
            " float16 is refused: T5's activations overflow its range (largest value 65,504)."
            if dtype in ("float16", "fp16", "half")
            else ""
        )
        raise ConversionError(f"dtype must be float32 or bfloat16, not {dtype}.{reason}")
    if max_shard_size < 1:
        raise ConversionError(f"max_shard_size must be at least 1 byte, not {max_shard_size}.")
    architecture = infer_architecture(checkpoint)
    if mlp_activations is not None:
        architecture = dataclasses.replace(architecture, mlp_activations=mlp_activations)
    feed_forward_proj(architecture)
    expected = mapping.entries(architecture)
    mapping.check_parameters(checkpoint, expected)
    if model_type is None:
        model_type = "mt5" if architecture.vocab_size == MT5_VOCAB_SIZE else "t5"
    if model_type == "mt5" and architecture.logits_via_embedding:
        raise ConversionError(
            f"{checkpoint.path} has no output projection of its own (T5 1.0): its logits are "
            "scaled, which MT5ForConditionalGeneration does not do. Use --model-type t5."
        )
    if tokenizer is not None:
        check_size(tokenizer, architecture.vocab_size)
    return Export(
        checkpoint,
        architecture,
        expected,
        model_type,
        tokenizer,
        dtype,
        dropout_rate,
        relative_attention_max_distance,
        inputs_add_eos,
        max_shard_size,
    )


def write_export(export: Export, directory: Path) -> list[str]:
    """Writes the model's files into an existing directory; returns their names.

    Holds one tensor at a time. `new_directory` makes the result appear as a whole.
    """
    files = set(directory.iterdir())
    tensors = export.checkpoint.parameters()
    dtype = DTYPES[export.dtype]
    outputs = [
        safetensors_file.Output(entry.hf, entry.hf_shape, dtype, _Maker(tensors[entry.t5x], entry))
        for entry in export.entries
    ]
    safetensors_file.write_sharded(directory, outputs, export.max_shard_size)
    _dump(directory / "config.json", config(export))
    _dump(directory / "generation_config.json", generation_config(export))
    if export.tokenizer is not None:
        write_tokenizer(directory, export.tokenizer, add_eos=export.inputs_add_eos)
    return sorted(path.name for path in set(directory.iterdir()) - files)


@dataclasses.dataclass(frozen=True)
class _Maker:
    """Reads one tensor and turns it into Hugging Face's form, when called."""

    tensor: Tensor
    entry: mapping.Entry

    def __call__(self) -> np.ndarray[Any, Any]:
        return self.entry.convert(self.tensor.read())


_SPECIAL_IDS = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}


def config(export: Export) -> dict[str, Any]:
    """Returns the contents of config.json, for `transformers` 4 and 5."""
    sizes = export.architecture
    return {
        "architectures": [export.class_name],
        "model_type": "mt5" if export.model_type == "mt5" else "t5",
        "vocab_size": sizes.vocab_size,
        "d_model": sizes.emb_dim,
        "d_kv": sizes.head_dim,
        "d_ff": sizes.mlp_dim,
        "num_layers": sizes.num_encoder_layers,
        "num_decoder_layers": sizes.num_decoder_layers,
        "num_heads": sizes.num_heads,
        "feed_forward_proj": feed_forward_proj(sizes),
        "relative_attention_num_buckets": sizes.relative_attention_num_buckets,
        "relative_attention_max_distance": export.relative_attention_max_distance,
        "dropout_rate": export.dropout_rate,
        "layer_norm_epsilon": 1e-6,
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "use_cache": True,
        # Version 4 ties the output projection and scales by d_model**-0.5 together. Version 5 ties
        # only where the file has no projection, whatever is said here, and has a name of its own
        # for the scaling; 5.0 scales always unless that name is given.
        "tie_word_embeddings": sizes.logits_via_embedding,
        "scale_decoder_outputs": sizes.logits_via_embedding,
        "dtype": export.dtype,
        "torch_dtype": export.dtype,
        **_SPECIAL_IDS,
        # Whose fields these are; without it 4.57 and 5.0 warn of tokenizers made by Mistral.
        "transformers_version": "5.0.0",
    }


def generation_config(export: Export) -> dict[str, Any]:
    """Returns the contents of generation_config.json."""
    sizes = export.architecture
    if sizes.num_decoder_layers > sizes.num_encoder_layers:
        # `generate` of transformers 5 makes as many cache entries as the encoder has layers.
        return {**_SPECIAL_IDS, "use_cache": False}
    return dict(_SPECIAL_IDS)


# T5's gelu is the tanh approximation, which "gated-gelu" means too.
FEED_FORWARD_PROJ = {
    ("relu",): "relu",
    ("gelu",): "gelu_new",
    ("silu",): "silu",
    ("gelu", "linear"): "gated-gelu",
    ("relu", "linear"): "gated-relu",
    ("silu", "linear"): "gated-silu",
}


def feed_forward_proj(architecture: Architecture) -> str:
    """Hugging Face's name for the MLP's activations.

    Raises:
      ConversionError: it has none.
    """
    found = FEED_FORWARD_PROJ.get(architecture.mlp_activations)
    if found is None:
        known = ", ".join(str(activations) for activations in FEED_FORWARD_PROJ)
        raise ConversionError(
            f"mlp_activations {architecture.mlp_activations} cannot be expressed in Hugging "
            f"Face's T5; these can: {known}."
        )
    return found


def check_output(directory: Path) -> None:
    """Checks that `directory` may be written: absent, or empty.

    Raises:
      ConversionError: there is something.
    """
    if directory.is_dir() and not directory.is_symlink():
        if any(directory.iterdir()):
            raise ConversionError(f"{directory} exists and is not empty; nothing is overwritten.")
    elif directory.exists() or directory.is_symlink():
        raise ConversionError(f"{directory} exists and is not a directory.")


@contextlib.contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """A directory beside `directory` that takes its name at the end, and is removed on failure."""
    check_output(directory)
    temporary = directory.parent / f".{directory.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise ConversionError(f"{directory} cannot be made: {error}") from error
    try:
        yield temporary
        temporary.rename(directory)
    except BaseException:
        shutil.rmtree(temporary)
        raise


def _dump(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
