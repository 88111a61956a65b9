"""Writes a small model in every format, and computes its probabilities token by token."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np

import recipes
from mtf import config as config_lib
from mtf.cli.convert import command as convert
from mtf.models import t5
from mtf.models.settings import T5Config
from tests.conversion import writers

SIZES = {"num_encoder_layers": 2, "num_decoder_layers": 1}


def write_checkpoint(folder: Path, **sizes: Any) -> Path:
    """Writes a T5X checkpoint with the 384 rows of ByT5's embedding; always the same."""
    return writers.write_t5x(folder, writers.random_parameters(**{**SIZES, **sizes}, seed=2))


def write_run(folder: Path, step: int = 7, **settings: Any) -> Path:
    """Writes a run of recipes.pretrain_text with one checkpoint; settings have `__` for dots."""
    parameters = writers.random_parameters(**SIZES, seed=2)
    writers.write_orbax(folder / "checkpoints", parameters, step)
    values = {
        "model.network.emb_dim": 32,
        "model.network.mlp_dim": 48,
        "model.network.num_heads": 3,
        "model.network.head_dim": 8,
        "model.network.num_decoder_layers": 1,
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    overrides = [config_lib.Override("set", f"{name}={value!r}") for name, value in values.items()]
    config = config_lib.apply_overrides(recipes.pretrain_text(), overrides)
    config_lib.write_run_dir(folder, config, "command")
    return folder


def write_huggingface(folder: Path, *options: str) -> Path:
    """Writes the same model in the format of Hugging Face."""
    out = folder / "hf"
    assert convert.main([str(write_checkpoint(folder)), str(out), "--to", "hf", *options]) == 0
    (out / "checksums.json").unlink()  # as in a directory that transformers wrote
    return out


_INPUTS_LENGTH, _TARGETS_LENGTH = 48, 24


def log_probabilities(
    network: T5Config, params: Any, inputs: list[int], targets: list[int]
) -> np.ndarray:
    """Returns (targets, vocabulary): log-probabilities of each token given all before it."""
    previous = [0, *targets[:-1]]
    batch = {
        "encoder_input_tokens": _padded(inputs, _INPUTS_LENGTH),
        "decoder_input_tokens": _padded(previous, _TARGETS_LENGTH),
        "decoder_target_tokens": _padded([1] * len(targets), _TARGETS_LENGTH),
    }
    return np.asarray(_log_probabilities(network, params, batch))[: len(targets)]


@functools.partial(jax.jit, static_argnums=0)
def _log_probabilities(network: T5Config, params: Any, batch: t5.Batch) -> jax.Array:
    return jax.nn.log_softmax(t5.apply(network, params, batch)[0])


def _padded(ids: list[int], length: int) -> np.ndarray:
    return np.array([ids + [0] * (length - len(ids))], np.int32)
