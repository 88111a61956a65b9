"""Functions that change a config in place; `--apply NAME` or `--apply "NAME(…)"` calls them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fiddle as fdl

from mtf import builders
from mtf.base.errors import UserError
from mtf.config import new_run_dir
from mtf.data import ByteVocabulary, DatasetTaskConfig
from mtf.evaluation import RankFilesConfig
from mtf.jobs import Cache, Convert, Evaluate, Infer, Train
from mtf.models import LoraConfig
from mtf.partitioning import FULLY_SHARDED_AXIS_RULES, PartitionerConfig
from mtf.training import AdamWConfig

# A model with random weights, and data, with which `smoke_test` replaces what is not given.
_TINY = Path(__file__).with_name("tiny")
_MODEL, _PAIRS, _CHOICES = (str(_TINY / name) for name in ("model", "pairs.tsv", "choices.jsonl"))


def smoke_test(config: fdl.Config) -> None:
    """Runs any job offline with a tiny model and little data, in a minute on a laptop.

    Training starts from scratch and takes 20 steps with 4 short rows each. It keeps the objective,
    loss, optimizer, schedule and local data (files, corpora, and a mixture's cache or mirror). Text
    that ships with Python replaces data from the Hugging Face hub. A remote vocabulary is replaced
    by bytes with 125 sentinels, unless the data come from a cache. The other jobs read a model and
    data that come with mtf, unless a checkpoint and local data are given.
    """
    job = fdl.get_callable(config)
    if job is Cache:
        _use_tiny_task(config)
    if job in (Cache, Convert):
        return
    local_cpu(config)
    config.batch_size = 4
    if _has_field(config, "train_steps"):
        _shrink(config)
    if job in (Evaluate, Infer):
        config.checkpoint = config.checkpoint or _MODEL
    if job is Evaluate and builders.data.is_remote(config.data):
        lengths = {"inputs": 64, "targets": 16}
        config.data = fdl.Config(RankFilesConfig, files=_CHOICES, task_feature_lengths=lengths)
    elif job is Infer and config.files is None and config.data_dir is None:
        config.files, config.mixture_or_task_name = _PAIRS, None
        config.output_dir = config.output_dir or new_run_dir("infer")
        config.decoding.max_length = 16


def _arguments(recipe: str) -> dict[str, str]:
    """Returns the arguments with which `--apply smoke_test` calls a recipe that is given none."""
    arguments = {
        "cache": {"mixture": "tiny"},
        "continue_pretraining": {"checkpoint": _MODEL, "files": str(_TINY / "text.txt")},
        "convert": {"checkpoint": _MODEL, "output": new_run_dir("convert")},
        "finetune": {"checkpoint": _MODEL, "train": _PAIRS, "validation": _PAIRS},
        "t5_1_1_finetune": {"files": _PAIRS},
    }
    return arguments.get(recipe, {})


vars(smoke_test)["arguments"] = _arguments


def _use_tiny_task(config: fdl.Config[Cache]) -> None:
    config.output = config.output or new_run_dir("cache")
    config.num_workers, config.max_rows = 1, 20
    if (config.task, config.data_dir, config.from_seqio) == (None, None, None):
        config.mixture, config.vocabulary = "tiny", "byt5"
        columns = {"inputs": "inputs", "targets": "targets", "tsv_header": False}
        config.task = fdl.Config(DatasetTaskConfig, files={"train": _PAIRS}, **columns)


def _shrink(config: fdl.Config[Train]) -> None:
    network = config.model.network
    network.emb_dim, network.num_heads, network.head_dim, network.mlp_dim = 32, 2, 16, 64
    network.num_encoder_layers = network.num_decoder_layers = 1
    network.remat_policy = "none"
    data = config.data
    if builders.data.is_remote(data):
        config.data = data = builders.data.python_text(data)
    vocabulary = data.vocabulary
    if getattr(data, "cache_dir", None) is None and "://" in getattr(vocabulary, "path", ""):
        data.vocabulary = fdl.Config(ByteVocabulary, extra_ids=125)
        network.vocab_size = builders.model.BYT5_VOCAB_SIZE
    # Span corruption turns 70 tokens into 64 inputs; in BERT's objective, all 70 are targets.
    data.task_feature_lengths = {"inputs": 64, "targets": 72}
    if _has_field(data, "num_streams"):
        data.num_streams = 1
    config.checkpoint.restore = None
    config.train_steps = 20
    config.num_samples = 1
    config.trainer.num_microbatches = 1
    config.trainer.stats_period = 5
    period = config.train_steps // 2
    if config.trainer.eval_period is not None:
        config.trainer.eval_period = period
        config.trainer.eval_steps = 2
    if config.evaluator is not None:
        config.evaluator.period, config.evaluator.num_examples = period, 4
    config.checkpoint.save.period = period


def deterministic(config: fdl.Config, seed: int = 42) -> None:
    """Sets the seeds and the checkpoint period (1,000 steps) of T5X's deterministic training.

    The source is T5X's docs/usage/pretrain.md. Every run, with or without this fiddler, saves the
    position of the data iterator.
    """
    _training(config).data.seed = seed
    config.random_seed = seed
    config.checkpoint.save.period = 1000


def local_cpu(config: fdl.Config) -> None:
    """Adapts a run to a CPU by setting float32, unrolled layers and a single partition."""
    if _has_field(config, "model"):
        config.model.network.dtype, config.model.network.scan_layers = "float32", False
    else:
        config.dtype = "float32"
    config.partitioner = fdl.Config(PartitionerConfig, num_partitions=1)


def short(config: fdl.Config, steps: int = 100) -> None:
    """Trains for `steps` updates, counted from the step of the initial checkpoint."""
    config.train_steps = _start_step(config) + steps


def from_scratch(config: fdl.Config) -> None:
    """Trains from scratch instead of from a checkpoint, for the same number of updates."""
    _training(config).train_steps -= _start_step(config)
    config.checkpoint.restore = None


def no_eval(config: fdl.Config) -> None:
    """Turns off evaluation during training."""
    _training(config).trainer.eval_period = None
    config.evaluator = None


def lora(
    config: fdl.Config,
    rank: int = 8,
    alpha: float = 16.0,
    dropout_rate: float = 0.0,
    targets: tuple[str, ...] = (".*/query", ".*/value"),
    learning_rate: float = 1e-3,
) -> None:
    """Trains low-rank adapters (LoRA) instead of all parameters, using AdamW at a constant rate.

    Adafactor is not used because it scales updates by the magnitude of the parameter: half of the
    adapter matrices start at zero, so they would hardly change.
    """
    training = _training(config)
    training.model.network.lora = fdl.Config(LoraConfig, rank, alpha, dropout_rate, targets)
    training.optimizer = fdl.Config(AdamWConfig, builders.schedule.constant(learning_rate))


def fully_sharded(config: fdl.Config) -> None:
    """Splits parameters and activations across both the data axis and the model axis, as in mT0."""
    config.partitioner.logical_axis_rules = FULLY_SHARDED_AXIS_RULES


def _training(config: fdl.Config) -> fdl.Config:
    """Returns `config`; raises UserError unless it is the config of a training job."""
    if not _has_field(config, "train_steps"):
        job = fdl.get_callable(config).__name__
        raise UserError(f"expected the config of a training job, got the config of {job}")
    return config


def _has_field(config: fdl.Config, name: str) -> bool:
    return name in config.__signature_info__.parameters


def _start_step(config: fdl.Config) -> int:
    """Returns the initial checkpoint's step, from the config or the path; 0 if neither has it."""
    restore: Any = _training(config).checkpoint.restore
    if restore and restore.step is not None:
        return int(restore.step)
    found = restore and re.search(r"checkpoint_(\d+)/?$", restore.path)
    return int(found[1]) if found else 0
