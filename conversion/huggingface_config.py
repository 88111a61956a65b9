"""Reads the config.json files of Hugging Face models of the T5 family."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from conversion import mapping
from conversion.architecture import MAX_LAYERS, infer_architecture
from conversion.families import FAMILIES, SPECIAL_IDS, Architecture
from conversion.huggingface import FEED_FORWARD_PROJ, LAYER_NORM_EPSILON, SIZES, ModelType
from conversion.json_file import read_json
from conversion.tensor import Checkpoint, ConversionError
from mtf.storage import AnyPath

_MODEL_TYPES = ("t5", "mt5", "umt5")
_ACTIVATIONS = {name: activations for activations, name in FEED_FORWARD_PROJ.items()}
# Sizes that config.json may omit.
_OTHER_SIZES = ("relative_attention_num_buckets", "relative_attention_max_distance")
_MAX_SIZE = 2**31 - 1


class HuggingFaceConfig(NamedTuple):
    """The content of config.json.

    Attributes:
      model_type: "t5", "mt5" or "umt5".
      architecture: the architecture; `logits_via_embedding` is always False.
      scaled: whether the decoder's output is multiplied by d_model**-0.5 before it is projected.
      described: the settings for `Checkpoint.described`.
    """

    model_type: ModelType
    architecture: Architecture
    scaled: bool
    described: dict[str, Any]


def read_config(path: AnyPath) -> HuggingFaceConfig:
    """Reads config.json; raises ConversionError if it describes an unsupported network."""
    config = read_json(path)
    architecture = _architecture(config, path)
    described = {
        "mlp_activations": architecture.mlp_activations,
        "dropout_rate": float(config.get("dropout_rate", 0.1)),
        "relative_attention_max_distance": config.get("relative_attention_max_distance", 128),
    }
    special_ids = _special_ids(config, path)
    if special_ids != SPECIAL_IDS:
        described["special_ids"] = special_ids
    return HuggingFaceConfig(config["model_type"], architecture, _is_scaled(config), described)


def is_config(path: AnyPath) -> bool:
    """Returns whether a file is a Hugging Face config.json, which contains "model_type"."""
    try:
        return "model_type" in read_json(path)
    except ConversionError:
        return False


def described_by(checkpoint: Checkpoint, path: AnyPath) -> tuple[Checkpoint, ModelType]:
    """Returns the checkpoint with the settings of a config.json added, and the model type.

    Raises ConversionError if the parameters do not match config.json. The message lists up to ten
    mismatches, with names and shapes.
    """
    config = read_config(path)
    # For umT5, transformers 5 always writes tie_word_embeddings=true.
    inferred = infer_architecture(checkpoint).logits_via_embedding
    tied = inferred if config.model_type == "umt5" else config.scaled
    sizes = dataclasses.replace(config.architecture, logits_via_embedding=tied)
    mapping.check_shapes(
        {f"target/{name}": tensor.shape for name, tensor in checkpoint.parameters().items()},
        {f"target/{entry.t5x}": entry.shape for entry in mapping.entries(sizes)},
        f"{path.name} implies",
        f"The parameters of {checkpoint.path} do not match {path}",
    )
    return dataclasses.replace(checkpoint, described=config.described), config.model_type


def _architecture(config: dict[str, Any], where: AnyPath) -> Architecture:
    model_type = config.get("model_type")
    if model_type not in _MODEL_TYPES:
        raise ConversionError(
            f"{where}: model_type is {model_type!r}; expected 't5' (also for ByT5), 'mt5' or "
            "'umt5'."
        )
    if config.get("num_decoder_layers") is None:
        config = {**config, "num_decoder_layers": config.get("num_layers")}
    buckets = config.setdefault("relative_attention_num_buckets", 32)
    wrong = [name for name in (*SIZES, *_OTHER_SIZES) if not _is_size(config.get(name, 1))]
    wrong += [name for name in SIZES if config.get(name) is None]
    if wrong:
        raise ConversionError(
            f"{where}: expected a whole number from 1 to {_MAX_SIZE:,} for {', '.join(wrong)}."
        )
    depths = [config["num_layers"], config["num_decoder_layers"]]
    if max(depths) > MAX_LAYERS:
        raise ConversionError(
            f"{where}: the encoder has {depths[0]:,} layers and the decoder {depths[1]:,}; "
            f"expected at most {MAX_LAYERS:,}."
        )
    if type(config.get("dropout_rate", 0.1)) not in (int, float):
        raise ConversionError(f"{where}: dropout_rate is {config['dropout_rate']!r}, not a number.")
    epsilon = _value(config, "layer_norm_epsilon", LAYER_NORM_EPSILON)
    if epsilon != LAYER_NORM_EPSILON:
        raise _unsupported(where, "layer_norm_epsilon", epsilon, LAYER_NORM_EPSILON)
    activation = config.get("feed_forward_proj", "relu" if model_type == "t5" else "gated-gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ConversionError(
            f"{where}: feed_forward_proj {activation!r} is not supported; expected one of "
            f"{', '.join(_ACTIVATIONS)}."
        )
    return Architecture(
        **{ours: config[theirs] for theirs, ours in SIZES.items()},
        mlp_activations=_ACTIVATIONS[activation],
        logits_via_embedding=False,
        relative_attention_num_buckets=buckets,
        relpos_bias_per_layer=model_type == "umt5",
    )


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= _MAX_SIZE


def _special_ids(config: dict[str, Any], where: AnyPath) -> Mapping[str, int]:
    ids = {name: _value(config, name, default) for name, default in SPECIAL_IDS.items()}
    for family in FAMILIES:
        if family.special_ids == ids:
            return family.special_ids
    name = next(name for name, default in SPECIAL_IDS.items() if ids[name] != default)
    raise _unsupported(where, name, config[name], SPECIAL_IDS[name])


def _value(config: dict[str, Any], name: str, default: Any) -> Any:
    """Returns a field, or `default` if it is None or missing; unwraps a list that has one value."""
    given = config.get(name)
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    return default if given is None else given


def _unsupported(where: AnyPath, name: str, value: Any, expected: Any) -> ConversionError:
    return ConversionError(f"{where}: {name} is {value}; only T5's value {expected} is supported.")


def _is_scaled(config: dict[str, Any]) -> bool:
    default = config.get("tie_word_embeddings") is not False
    return config["model_type"] != "mt5" and bool(config.get("scale_decoder_outputs", default))
