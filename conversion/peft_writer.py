"""Writes the LoRA adapters of a checkpoint in PEFT's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from conversion import adapters, mapping
from conversion.architecture import infer_architecture
from conversion.checksums import checking, write_checksums
from conversion.tensor import Checkpoint, ConversionError

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"


def write_adapters(
    checkpoint: Checkpoint, directory: Path, *, base: str | None, dropout_rate: float
) -> dict[str, np.ndarray[Any, Any]]:
    """Writes the adapters' config and weights for PEFT; returns the weights by their names.

    Args:
      checkpoint: a checkpoint that was opened with `merge_adapters=False`.
      directory: an existing directory.
      base: the name or path of the base model in Hugging Face's format, or None if it is unknown.
      dropout_rate: the dropout rate of the adapters' inputs in training.

    Raises:
      ConversionError: the checkpoint contains no adapters, or they differ in rank or scale.
    """
    check_adapters(checkpoint)
    kernels = {
        entry.t5x.removesuffix("/kernel"): entry.hf.removesuffix(".weight")
        for entry in mapping.entries(infer_architecture(adapters.merged(checkpoint)))
        if entry.t5x.endswith("/kernel")
    }
    weights, settings = {}, set()
    with checking(checkpoint.path):
        for name, module in kernels.items():
            parts = [checkpoint.tensors.get(f"target/{name}/{part}") for part in adapters.NAMES]
            a, b, scale = parts
            if a is None or b is None or scale is None:
                continue
            rank = a.shape[1]
            settings.add((rank, float(scale.read()) * rank))
            # PyTorch's linear layers have the shape (out, in).
            for part, tensor in (("lora_A", a), ("lora_B", b)):
                array = np.ascontiguousarray(tensor.read().astype(np.float32).T)
                weights[f"base_model.model.{module}.{part}.weight"] = array
    if len(settings) > 1:
        raise ConversionError(f"{checkpoint.path}: the adapters differ in rank or scale.")
    ((rank, alpha),) = settings
    adapted = {key.removeprefix("base_model.model.").rsplit(".", 2)[0] for key in weights}
    described = {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": dropout_rate,
        "target_modules": _shortest(adapted, set(kernels.values())),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (directory / CONFIG_FILE).write_text(json.dumps(described, indent=2) + "\n")
    save_file(weights, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    write_checksums(directory)
    return weights


def check_adapters(checkpoint: Checkpoint) -> None:
    """Raises ConversionError if a checkpoint has no LoRA adapters."""
    if not adapters.has_adapters(checkpoint):
        raise ConversionError(
            f"{checkpoint.path} has no LoRA adapters. To write the whole model, use --to hf."
        )


def _shortest(adapted: set[str], modules: set[str]) -> list[str]:
    """Returns the last parts of the adapted names, such as "q", if no other module matches them.

    If another module matches them, returns the full names.
    """
    last = {module.rpartition(".")[2] for module in adapted}
    selected = {module for module in modules if module.rpartition(".")[2] in last}
    return sorted(last if selected == adapted else adapted)
