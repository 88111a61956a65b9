"""Functions for `--apply NAME` or `--apply "NAME(…)"`, which change a config in place."""

from __future__ import annotations

import re
from typing import Any

import fiddle as fdl

from mtf import builders
from mtf.data import ByteVocabulary
from mtf.errors import UserError
from mtf.models import LoraConfig
from mtf.partitioning import FULLY_SHARDED_AXIS_RULES, PartitionerConfig
from mtf.training import AdamWConfig


def smoke_test(config: fdl.Config, python_text: bool = False) -> None:
    """Scales a run down to a minute on a laptop, offline: a tiny network, 20 steps of 4 short rows.

    It starts from scratch and keeps vocabulary size, objective, loss, optimizer, schedule and local
    data: files, corpora, a mixture's cache or mirror. Text that ships with Python replaces data
    from the Hugging Face hub (all data, if `python_text`); bytes and 125 sentinels replace a remote
    vocabulary, unless a cache was made with it. Other jobs only get a smaller batch.
    """
    local_cpu(config)
    config.batch_size = 4
    if not _has_field(config, "train_steps"):
        return
    network = config.model.network
    network.emb_dim, network.num_heads, network.head_dim, network.mlp_dim = 32, 2, 16, 64
    network.num_encoder_layers = network.num_decoder_layers = 2
    network.remat_policy = "none"
    data = config.data
    if python_text or builders.data.is_remote(data):
        config.data = data = builders.data.python_text(data)
    vocabulary = data.vocabulary
    if getattr(data, "cache_dir", None) is None and "://" in getattr(vocabulary, "path", ""):
        data.vocabulary = fdl.Config(ByteVocabulary, extra_ids=125)
    # Span corruption makes 64 inputs from 70 tokens; in BERT's objective, all 70 are targets.
    data.task_feature_lengths = {"inputs": 64, "targets": 72}
    if _has_field(data, "num_streams"):
        data.num_streams = 1
    config.checkpoint.restore = None
    config.train_steps = 20
    config.num_samples = 1
    config.trainer.num_microbatches = 1
    config.trainer.stats_period = 5
    if config.trainer.eval_period is not None:
        config.trainer.eval_period = config.train_steps
        config.trainer.eval_steps = 2
    if config.evaluator is not None:
        config.evaluator.num_examples = 4
    config.checkpoint.save.period = 10


def deterministic(config: fdl.Config, seed: int = 42) -> None:
    """Sets T5X's deterministic training: its seeds, and a checkpoint every 1,000 steps.

    Source: T5X's docs/usage/pretrain.md. The position in the data is saved in every run.
    """
    _training(config).data.seed = seed
    config.random_seed = seed
    config.checkpoint.save.period = 1000


def local_cpu(config: fdl.Config) -> None:
    """Adapts a run to one CPU: float32, unrolled layers, one partition."""
    float32(config)
    if _has_field(config, "model"):
        unrolled(config)
    config.partitioner = fdl.Config(PartitionerConfig, num_partitions=1)


def short(config: fdl.Config, steps: int = 100) -> None:
    """Trains for `steps` updates after the initial checkpoint."""
    config.train_steps = _start_step(config) + steps


def from_scratch(config: fdl.Config) -> None:
    """Starts without a checkpoint, and trains for the same number of updates."""
    _training(config).train_steps -= _start_step(config)
    config.checkpoint.restore = None


def no_eval(config: fdl.Config) -> None:
    """Turns off evaluation during training."""
    _training(config).trainer.eval_period = None
    config.evaluator = None


def microbatches(config: fdl.Config, num_parts: int = 8) -> None:
    """Sums gradients over `num_parts` parts of a batch, with less memory and the same result."""
    _training(config).trainer.num_microbatches = num_parts


def frequent_checkpoints(config: fdl.Config, period: int = 100, keep: int | None = 3) -> None:
    """Saves every `period` steps and keeps the last checkpoints, for preemptible machines."""
    save = _training(config).checkpoint.save
    save.period, save.keep = period, keep


def bfloat16(config: fdl.Config) -> None:
    """Computes activations in bfloat16; parameters, softmax, norms and logits stay float32."""
    (config.model.network if _has_field(config, "model") else config).dtype = "bfloat16"


def float32(config: fdl.Config) -> None:
    """Computes activations in float32."""
    (config.model.network if _has_field(config, "model") else config).dtype = "float32"


def scanned(config: fdl.Config) -> None:
    """Runs layers under `lax.scan`, which compiles fast; XL and XXL need it."""
    _training(config).model.network.scan_layers = True


def unrolled(config: fdl.Config) -> None:
    """Unrolls layers, which compiles slowly and runs faster on a CPU."""
    _training(config).model.network.scan_layers = False


def remat(config: fdl.Config) -> None:
    """Recomputes layers in the backward pass, for much less memory and about a third more work."""
    _training(config).model.network.remat_policy = "full"


def lora(
    config: fdl.Config,
    rank: int = 8,
    alpha: float = 16.0,
    dropout_rate: float = 0.0,
    targets: tuple[str, ...] = (".*/query", ".*/value"),
    learning_rate: float = 1e-3,
) -> None:
    """Trains low-rank adapters (LoRA) instead of all parameters, with AdamW at a constant rate.

    Adafactor multiplies updates by the size of a parameter, and half of an adapter starts as zeros.
    """
    training = _training(config)
    training.model.network.lora = fdl.Config(LoraConfig, rank, alpha, dropout_rate, targets)
    training.optimizer = fdl.Config(AdamWConfig, builders.schedule.constant(learning_rate))


def fully_sharded(config: fdl.Config) -> None:
    """Splits parameters and activations over both the data and the model axis, as mT0 did."""
    config.partitioner.logical_axis_rules = FULLY_SHARDED_AXIS_RULES


def fsdp(config: fdl.Config, num_devices: int = 8) -> None:
    """Splits parameters, optimizer state and the batch over `num_devices` devices."""
    config.partitioner.fsdp = num_devices


def _training(config: fdl.Config) -> fdl.Config:
    """Returns the config; raises a UserError unless it is that of a training job."""
    if not _has_field(config, "train_steps"):
        job = fdl.get_callable(config).__name__
        raise UserError(f"expected the config of a training job, got the config of {job}")
    return config


def _has_field(config: fdl.Config, name: str) -> bool:
    return name in config.__signature_info__.parameters


def _start_step(config: fdl.Config) -> int:
    """Returns the step of the initial checkpoint, by the recipe or the path; else 0."""
    restore: Any = _training(config).checkpoint.restore
    if restore and restore.step is not None:
        return int(restore.step)
    found = restore and re.search(r"checkpoint_(\d+)/?$", restore.path)
    return int(found[1]) if found else 0
