"""`recipes.continue_pretraining`: what it reads off checkpoints, and the text that it trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

import recipes
from mtf.base.errors import UserError
from mtf.data import HubStreamConfig, TextFilesConfig, loaders
from tests import small
from tests.inference import models
from tests.recipes.test_finetune import hugging_face


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `hf`, a random ByT5, and `text.txt`."""
    folder = tmp_path_factory.mktemp("pretraining")
    hugging_face(folder, num_encoder_layers=1, num_decoder_layers=1)
    small.write_text(folder)
    return folder


def test_it_goes_on_from_a_checkpoint_as_t5_was_pretrained(tmp_path: Path, folder: Path) -> None:
    run = models.write_run(tmp_path / "run", step=7)
    for checkpoint, step in ((folder / "hf", 0), (run, 7)):
        config = recipes.continue_pretraining(str(checkpoint), str(folder / "text.txt"), steps=50)
        job = fdl.build(config)
        assert (job.train_steps, job.optimizer.step_offset) == (step + 50, step)
        assert job.model.network.dropout_rate == 0.0
        assert job.data.task_feature_lengths == {"inputs": 512, "targets": 114}  # T5's.
        assert (job.trainer.eval_period, job.checkpoint.save.period) == (5, 5)
        assert job.describe().problems == []


def test_spans_become_sentinels(folder: Path) -> None:
    config = recipes.continue_pretraining(str(folder / "hf"), str(folder / "text.txt"))
    assert isinstance(fdl.build(config.data), TextFilesConfig)
    (example,) = loaders.sample_examples(fdl.build(config.data), 1)
    # 15% of 568 bytes in spans of three are 28 spans. The text is ASCII; ids start with 3.
    sentinels = [token for token in example.inputs if token >= 128 + 3]
    assert sentinels == list(range(258, 258 - 28, -1))
    assert [token for token in example.targets if token >= 128 + 3] == sentinels
    assert (len(example.inputs), len(example.targets)) == (512, 114)


@pytest.mark.parametrize(
    ("subset", "subsets"),
    [(None, None), ("ro", {"ro": 1.0}), ({"ro": 0.9, "en": 0.1}, {"ro": 0.9, "en": 0.1})],
)
def test_a_dataset_is_streamed(folder: Path, subset: Any, subsets: Any) -> None:
    config = recipes.continue_pretraining(
        str(folder / "hf"), dataset="owner/text" if subset is None else ("owner/text", subset)
    )
    data = fdl.build(config.data)
    assert isinstance(data, HubStreamConfig)
    assert (data.dataset, data.subsets) == ("owner/text", subsets)
    assert (data.split, data.eval_split) == ("train", "validation")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "Set either files to text files or dataset"),
        ({"files": "text.txt", "dataset": "owner/text"}, "Set either files"),
        ({"files": "text.txt", "checkpoint": "fh"}, "There is no model at fh.*Did you mean hf"),
        ({"files": "text.txt", "inputs_length": 1}, "1 tokens are too few"),
    ],
)
def test_mistakes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], says: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=says):
        recipes.continue_pretraining(**{"checkpoint": "hf", **arguments})
