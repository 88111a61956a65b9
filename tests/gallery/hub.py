"""A Hugging Face hub on the loopback with tiny models and datasets under the names of real ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import sentencepiece
from pyarrow import parquet

from mtf import convert
from mtf.tasks import registry
from tests.conversion import writers
from tests.small import read_metrics
from tests.sources import hub_server

_NUM_ROWS = 512
_SIZES = {
    "vocab_size": _NUM_ROWS,
    "emb_dim": 64,
    "num_heads": 4,
    "head_dim": 16,
    "mlp_dim": 128,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
}
_NUM_SENTINELS = 100
# Settings of a small run of `recipes.finetune`. With the same sizes, programs are compiled once.
SETTINGS: dict[str, Any] = {
    "train_steps": 40,
    "batch_size": 16,
    "optimizer.learning_rate.base_learning_rate": 0.01,
    "trainer.stats_period": 5,
    "trainer.eval_period": 20,
    "checkpoint.save.period": 20,
    "evaluator.period": 20,
    "data.task_feature_lengths": {"inputs": 32, "targets": 8},
}
SMALL = ["--set", *(f"{name}={value}" for name, value in SETTINGS.items())]
# The same for tasks that are learned more slowly.
LONGER_SETTINGS = SETTINGS | {
    "train_steps": 200,
    "trainer.eval_period": 100,
    "checkpoint.save.period": 100,
    "evaluator.period": 100,
}
LONGER = ["--set", *(f"{name}={value}" for name, value in LONGER_SETTINGS.items())]


@contextlib.contextmanager
def workplace(
    folder: Path, repositories: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A user's empty working directory, from which the hub has these models and datasets."""
    monkeypatch.setattr(registry, "_REGISTRY", type(registry._REGISTRY)())
    monkeypatch.setenv("HF_HOME", str(folder / "cache"))
    monkeypatch.delenv("MTF_DATA_DIR", raising=False)
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    monkeypatch.syspath_prepend(folder / "here")
    with (
        hub_server.serve(repositories) as server,
        hub_server.use(server, folder / "cache", monkeypatch),
    ):
        yield


def write_model(folder: Path, texts: Iterable[str], model_type: str = "t5") -> Path:
    """Writes a random network of two layers, with a vocabulary of the texts' pieces."""
    pieces = folder / "pieces"
    folder.mkdir(parents=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(pieces),
        vocab_size=_NUM_ROWS - _NUM_SENTINELS,
        hard_vocab_limit=False,
        character_coverage=1.0,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    source = writers.write_t5x(folder / "t5x", writers.random_parameters(**_SIZES))
    vocabulary = ["--vocabulary", f"{pieces}.model", "--model-type", model_type]
    assert convert.main([str(source), str(folder / "hf"), "--to", "hf", *vocabulary]) == 0
    return folder / "hf"


def write_dataset(
    folder: Path, splits: Mapping[str, Sequence[Mapping[str, Any]]], subset: str = "default"
) -> Path:
    """Writes a repository of Parquet files, with the README.md that names them."""
    lines = ["---", "configs:", f"- config_name: '{subset}'", "  data_files:"]
    (folder / subset).mkdir(parents=True)
    for split, rows in splits.items():
        table = pyarrow.Table.from_pylist([dict(row) for row in rows])
        parquet.write_table(table, folder / subset / f"{split}-00000-of-00001.parquet")
        lines += [f"  - split: {split}", f"    path: {subset}/{split}-*"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return folder


def check_learned(run_dir: str, task: str) -> None:
    """Asserts that the validation loss at the end is below the training loss at the beginning."""
    first, *_ = read_metrics(Path(run_dir))
    *_, last = read_metrics(Path(run_dir), f"training_eval/{task}")
    assert last["loss_per_target_token"] < 0.7 * first["loss_per_target_token"]
