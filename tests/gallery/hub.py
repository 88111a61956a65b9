"""A Hugging Face hub on the loopback with tiny models and datasets under the names of real ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from mtf import convert
from mtf.data.tasks import registry
from tests import made_up
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


def workplace(write: Callable[[Path], Mapping[str, Path]]) -> Any:
    """Returns a fixture: a user's empty working directory.

    The hub has the models and datasets that `write` writes into the folder above, by their names.
    """

    @pytest.fixture
    def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        repositories, here = write(tmp_path), tmp_path / "here"
        monkeypatch.setattr(registry, "_REGISTRY", type(registry._REGISTRY)())
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.delenv("MTF_DATA_DIR", raising=False)
        here.mkdir()
        monkeypatch.chdir(here)
        monkeypatch.syspath_prepend(here)
        with (
            hub_server.serve(repositories) as server,
            hub_server.use(server, tmp_path / "cache", monkeypatch),
        ):
            yield here
        sys.modules.pop("film_reviews", None)  # The page of classification has this file.

    return here


def write_model(folder: Path, texts: Iterable[str], model_type: str = "t5") -> Path:
    """Writes a random network of two layers, with a vocabulary of the texts' pieces."""
    pieces = folder / "pieces.model"
    folder.mkdir(parents=True)
    pieces.write_bytes(made_up.sentencepiece_model(texts, num_pieces=_NUM_ROWS - _NUM_SENTINELS))
    source = writers.write_t5x(folder / "t5x", writers.random_parameters(**_SIZES))
    vocabulary = ["--vocabulary", str(pieces), "--model-type", model_type]
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
