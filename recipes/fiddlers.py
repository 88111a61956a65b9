"""Changes to any recipe, by name: `--apply smoke_test`, `--apply "microbatches(num_parts=4)"`.

Each changes the config that it is given. Several are applied in the order of the command line, and
`--set` after them has the last word.
"""

from __future__ import annotations

import re
from typing import Any

import fiddle as fdl

from mtf import builders
from mtf.data import ByteVocabulary
from mtf.errors import UserError
from mtf.partitioning import PartitionerConfig

# 64 inputs hold 70 tokens under span corruption, with 14 targets; BERT's objective has them all.
_SMOKE_LENGTHS = {"inputs": 64, "targets": 72}


def smoke_test(config: fdl.Config, python_text: bool = False) -> None:
    """A minute on a laptop, offline: a tiny network, 20 steps of 4 short rows, from scratch.

    The vocabulary's rows, objective, loss, optimizer and schedule stay. Local data stay too:
    files, corpora, a mixture's cache or mirror. What would come from the Hugging Face hub becomes
    the text that Python carries. A vocabulary at a remote address becomes bytes and 125 sentinels,
    unless a cache was made with it. Of an evaluation or inference, the batch shrinks.

    Args:
      config: of a job.
      python_text: take the text that Python carries whatever the data are.
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
    data.task_feature_lengths = dict(_SMOKE_LENGTHS)
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
    config.checkpoint.save.period = 10


def deterministic(config: fdl.Config, seed: int = 42) -> None:
    """T5X's deterministic training: its seeds, and a checkpoint every 1,000 steps.

    Source: T5X's docs/usage/pretrain.md. There it also needs the dataset's state to be saved, which
    happens here in every run, so a restart never replays data.
    """
    _check_trains(config)
    config.data.seed = seed
    config.random_seed = seed
    config.checkpoint.save.period = 1000


def local_cpu(config: fdl.Config) -> None:
    """For one CPU: float32, layers one after another instead of scanned, one partition."""
    float32(config)
    if _has_field(config, "model"):
        unrolled(config)
    config.partitioner = fdl.Config(PartitionerConfig, num_partitions=1)


def short(config: fdl.Config, steps: int = 100) -> None:
    """Ends after so many updates: `train_steps` counts on from the step of the start."""
    _check_trains(config)
    config.train_steps = _start_step(config) + steps


def from_scratch(config: fdl.Config) -> None:
    """Restores nothing, and makes as many updates as before."""
    _check_trains(config)
    config.train_steps -= _start_step(config)
    config.checkpoint.restore = None


def no_eval(config: fdl.Config) -> None:
    """No evaluation during training."""
    _check_trains(config)
    config.trainer.eval_period = None


def microbatches(config: fdl.Config, num_parts: int = 8) -> None:
    """Gradients of so many parts of a batch are added up: less memory, the same result."""
    _check_trains(config)
    config.trainer.num_microbatches = num_parts


def frequent_checkpoints(config: fdl.Config, period: int = 100, keep: int | None = 3) -> None:
    """Saves often and keeps only the newest, for machines that may go away."""
    _check_trains(config)
    config.checkpoint.save.period = period
    config.checkpoint.save.keep = keep


def bfloat16(config: fdl.Config) -> None:
    """Activations in bfloat16; parameters, softmax, norms and logits stay float32."""
    (config.model.network if _has_field(config, "model") else config).dtype = "bfloat16"


def float32(config: fdl.Config) -> None:
    """Activations in float32."""
    (config.model.network if _has_field(config, "model") else config).dtype = "float32"


def scanned(config: fdl.Config) -> None:
    """Layers under `lax.scan`: compiles fast, needed for XL and XXL."""
    _check_trains(config)
    config.model.network.scan_layers = True


def unrolled(config: fdl.Config) -> None:
    """Layers one after another: compiles slowly, runs faster on a CPU."""
    _check_trains(config)
    config.model.network.scan_layers = False


def remat(config: fdl.Config) -> None:
    """Recomputes every layer in the backward pass: much less memory, about a third more work."""
    _check_trains(config)
    config.model.network.remat_policy = "full"


def fsdp(config: fdl.Config, num_devices: int = 8) -> None:
    """Splits parameters and optimizer state over so many devices, as well as the batch."""
    config.partitioner.fsdp = num_devices


def _check_trains(config: fdl.Config) -> None:
    if not _has_field(config, "train_steps"):
        job = fdl.get_callable(config).__name__
        raise UserError(f"it changes how a job trains, and this is the config of {job}")


def _has_field(config: fdl.Config, name: str) -> bool:
    return name in config.__signature_info__.parameters


def _start_step(config: fdl.Config) -> int:
    """Returns the step a run starts from, as the recipe or the checkpoint's name says; else 0."""
    restore: Any = config.checkpoint.restore
    if restore and restore.step is not None:
        return int(restore.step)
    found = restore and re.search(r"checkpoint_(\d+)/?$", restore.path)
    return int(found[1]) if found else 0
