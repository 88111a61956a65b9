"""Reading a Hugging Face directory of T5, mT5 or ByT5 as a checkpoint with T5X's names.

What `transformers` 5 computes counts, which config.json alone does not tell. The output projection
is the file's `lm_head.weight`, or the embedding where it has none, whatever `tie_word_embeddings`
says. T5's logits are scaled by d_model**-0.5 unless `scale_decoder_outputs`, or without that
`tie_word_embeddings`, is false; mT5's never are.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from conversion import mapping, safetensors_file
from conversion.architecture import Architecture
from conversion.errors import ConversionError, IncompleteCheckpoint
from conversion.huggingface import FEED_FORWARD_PROJ
from conversion.safetensors_file import Stored
from conversion.tensor import Checkpoint, Index, Tensor

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SHARED, _HEAD = "shared.weight", "lm_head.weight"
_EMBEDDINGS = (_SHARED, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# The first T5s have a bias there that no version of the network uses.
_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

_SIZES = {
    "vocab_size": "vocab_size",
    "emb_dim": "d_model",
    "num_heads": "num_heads",
    "head_dim": "d_kv",
    "num_encoder_layers": "num_layers",
    "mlp_dim": "d_ff",
}
_ACTIVATIONS = {name: activations for activations, name in FEED_FORWARD_PROJ.items()}
# What our network has; absent or None there means the same.
_FIXED = {
    "layer_norm_epsilon": 1e-6,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}


def is_huggingface(directory: Path) -> bool:
    """Returns whether a directory has a Hugging Face model's weights, in any of their formats."""
    patterns = ("*.safetensors", "pytorch_model*.bin*", "tf_model.h5", "flax_model.msgpack")
    return any(True for pattern in patterns for _ in directory.glob(pattern))


def open_huggingface(directory: Path) -> Checkpoint:
    """Opens a Hugging Face directory; reads names, shapes and types.

    Of the tensors it reads those that must be copies of the embedding, if the file has such.

    Raises:
      ConversionError: it is of another kind of model, has no safetensors, or its tensors are not
        those that config.json describes.
      IncompleteCheckpoint: a file is missing or cut off.
    """
    config = _read_json(directory / "config.json")
    architecture = _architecture(config, directory)
    stored = _stored(directory)
    tensors = _tensors(architecture, _is_scaled(config), stored, directory)
    described = {
        "mlp_activations": architecture.mlp_activations,
        "dropout_rate": float(config.get("dropout_rate", 0.1)),
        "relative_attention_max_distance": int(config.get("relative_attention_max_distance", 128)),
    }
    named = {f"target/{tensor.name}": tensor for tensor in tensors}
    return Checkpoint(directory, "huggingface", None, named, described)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise IncompleteCheckpoint(f"{path.parent} lacks {path.name}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConversionError(f"{path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ConversionError(f"{path} holds no JSON object.")
    return content


# ----------------------------------------------------------------------------------- config.json


def _architecture(config: dict[str, Any], directory: Path) -> Architecture:
    """Returns the sizes that config.json gives; whether the projection is tied is not known yet."""
    where = directory / "config.json"
    model_type = config.get("model_type")
    if model_type not in ("t5", "mt5"):
        reason = (
            " Every layer of umT5 has a relative position bias of its own, which is another "
            "network and not supported yet."
            if model_type == "umt5"
            else ""
        )
        raise ConversionError(
            f"{where}: model_type is {model_type!r}; expected 't5' (ByT5's too) or 'mt5'.{reason}"
        )
    missing = [name for name in _SIZES.values() if not isinstance(config.get(name), int)]
    if missing:
        raise ConversionError(f"{where} lacks {', '.join(missing)}.")
    for name, value in _FIXED.items():
        if config.get(name, value) not in (value, None, [value]):
            raise ConversionError(
                f"{where}: {name} is {config[name]}; only {value} is supported, T5's own."
            )
    default = "gated-gelu" if model_type == "mt5" else "relu"
    activation = config.get("feed_forward_proj", default)
    if activation not in _ACTIVATIONS:
        raise ConversionError(
            f"{where}: feed_forward_proj {activation!r} is not supported; these are: "
            f"{', '.join(_ACTIVATIONS)}."
        )
    depth = config.get("num_decoder_layers")
    return Architecture(
        **{ours: config[theirs] for ours, theirs in _SIZES.items()},
        num_decoder_layers=config["num_layers"] if depth is None else depth,
        mlp_activations=_ACTIVATIONS[activation],
        logits_via_embedding=False,
        relative_attention_num_buckets=int(config.get("relative_attention_num_buckets", 32)),
    )


def _is_scaled(config: dict[str, Any]) -> bool:
    if config["model_type"] == "mt5":
        return False
    return bool(config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False))


# ----------------------------------------------------------------------------------- files


def _stored(directory: Path) -> dict[str, Stored]:
    """Returns all tensors of the directory's safetensors files, by their names there."""
    if (directory / _INDEX).is_file():
        places = _read_json(directory / _INDEX).get("weight_map")
        if not isinstance(places, dict):
            raise ConversionError(f"{directory / _INDEX} has no weight_map.")
        files = {name: safetensors_file.read_header(directory / name) for name in places.values()}
        lost = [name for name, file in places.items() if name not in files[file]]
        if lost:
            raise IncompleteCheckpoint(
                f"{directory}: {places[lost[0]]} lacks {lost[0]}, which {_INDEX} places there."
            )
        return {name: tensor for header in files.values() for name, tensor in header.items()}
    if (directory / _WEIGHTS).is_file():
        return safetensors_file.read_header(directory / _WEIGHTS)
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    found = f" It has {', '.join(others[:3])}." if others else ""
    raise ConversionError(
        f"{directory} has no {_WEIGHTS} (nor {_INDEX}).{found} Other formats are not read; make "
        "one with transformers: AutoModelForSeq2SeqLM.from_pretrained(DIR).save_pretrained(OUT)."
    )


# ----------------------------------------------------------------------------------- tensors


def _tensors(
    architecture: Architecture, scaled: bool, stored: dict[str, Stored], directory: Path
) -> list[Tensor]:
    embedding = next((stored[name] for name in _EMBEDDINGS if name in stored), None)
    if embedding is None:
        raise ConversionError(
            f"{directory} has no {_SHARED}; of its {len(stored)} tensors the first is "
            f"{min(stored, default='none')}."
        )
    head = stored.get(_HEAD)
    if scaled and head is not None and _equal(head, embedding):
        head = None  # Older versions wrote the tied projection as well.
    tied = scaled and head is None
    entries = mapping.entries(dataclasses.replace(architecture, logits_via_embedding=tied))
    sources = {name: tensor for name, tensor in stored.items() if name != _UNUSED}
    for name in _EMBEDDINGS[1:]:
        copy = sources.pop(name, embedding)
        if not _equal(copy, embedding):
            raise ConversionError(
                f"{directory}: {name} differs from {_SHARED}; T5 has one embedding for both."
            )
    sources[_SHARED] = embedding
    if tied:
        sources.pop(_HEAD, None)
    else:
        # mT5 without a projection of its own takes the embedding, and does not scale.
        sources[_HEAD] = embedding if head is None else head
    _check(entries, sources, directory)
    # T5X scales with the tied projection only.
    factor = architecture.emb_dim**-0.5 if scaled and not tied else None
    return [
        _tensor(entry, sources[entry.hf], factor if entry.hf == _HEAD else None)
        for entry in entries
    ]


def _equal(a: Stored, b: Stored) -> bool:
    if a is b:
        return True
    if a.shape != b.shape or len(a.shape) != 2:
        return False
    rows = 4096  # at a time, so that neither is in memory as a whole
    return all(
        np.array_equal(a.read((part, slice(None))), b.read((part, slice(None))))
        for part in (slice(i, i + rows) for i in range(0, a.shape[0], rows))
    )


def _check(entries: list[mapping.Entry], sources: dict[str, Stored], directory: Path) -> None:
    """Checks that the file's tensors are those of the network that config.json describes.

    Raises:
      ConversionError: some are missing, unexpected or of another shape; all are counted, the
        first few named.
    """
    wanted = {entry.hf: entry.hf_shape for entry in entries}
    problems = [
        *(f"missing: {name}, shape {wanted[name]}" for name in wanted.keys() - sources),
        *(f"unexpected: {name}, shape {sources[name].shape}" for name in sources.keys() - wanted),
        *(
            f"wrong shape: {name} is {sources[name].shape}; config.json means {wanted[name]}"
            for name in wanted.keys() & sources
            if sources[name].shape != wanted[name]
        ),
    ]
    if problems:
        shown = "\n  ".join(sorted(problems)[:10])
        rest = f"\n  … {len(problems) - 10} more" if len(problems) > 10 else ""
        raise ConversionError(
            f"The tensors of {directory} are not those of its config.json "
            f"({len(problems)} of {len(wanted)}):\n  {shown}{rest}"
        )


def _tensor(entry: mapping.Entry, stored: Stored, factor: float | None) -> Tensor:
    """Returns a tensor under T5X's name, in T5X's layout."""

    def read(index: Index) -> np.ndarray[Any, Any]:
        slices = () if index is ... else index
        slices += (slice(None),) * (len(entry.shape) - len(slices))
        array = entry.convert(stored.read(slices[::-1] if entry.transposed else slices))
        return array if factor is None else array.astype(np.float32) * np.float32(factor)

    dtype = stored.dtype if factor is None else np.dtype(np.float32)
    return Tensor(entry.t5x, entry.shape, dtype, read)
