"""SeqIO's own caches, read by SeqIO, by our loader, and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtf.cli import cache as cache
from mtf.data import loaders
from mtf.data.settings import TaskMixtureConfig
from mtf.data.tasks.mixtures import mixture as our_mixture
from mtf.data.tasks.prompts.templates import load_templates
from tests.seqio.helpers import BYTES, DOCUMENTS, TRANSLATION, mixture, write_mirror

seqio = pytest.importorskip("seqio")
RANKED = "super_glue_copa_best_option_score_eval"


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mirror(tmp_path_factory.mktemp("mirror"))


def write(name: str, output: Path, mirror: Path, *options: str) -> None:
    status = cache.main(
        [
            *(name, "--output", str(output), "--data-dir", str(mirror), "--vocabulary", "byt5"),
            *("--format", "seqio", "--num-shards", "2", "--num-workers", "1", *options),
        ]
    )
    assert status == 0


@pytest.fixture(scope="module")
def cached(mirror: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output: Path = tmp_path_factory.mktemp("cache")
    for name in (TRANSLATION, DOCUMENTS):
        write(name, output, mirror)
    return output


def in_order(dataset: Any) -> list[dict[str, Any]]:
    """The examples, sorted by their records and choices or by their targets."""
    names = [name for name in ("idx", "targets_pretokenized") if name in dataset.element_spec]
    return sorted(dataset.as_numpy_iterator(), key=lambda example: tuple(example[names[0]]))


def provider(data: TaskMixtureConfig, templates: Path) -> Any:
    from mtf.data.seqio_tasks import tasks as seqio_tasks

    found = our_mixture(data.mixture_or_task_name, load_templates(templates))
    return seqio_tasks.build(found, data.vocabulary, data.data_dir).provider


@pytest.fixture(autouse=True)
def no_cache_dirs() -> Any:
    yield
    seqio.set_global_cache_dirs([])


@pytest.mark.parametrize(
    ("name", "split"), [(TRANSLATION, "train"), (TRANSLATION, "validation"), (RANKED, "validation")]
)
def test_seqio_reads_what_it_would_have_made(
    cached: Path, mirror: Path, prompts: Path, datasets_dir: Path, name: str, split: str
) -> None:
    folder = mirror
    if name == RANKED:
        folder = datasets_dir
        write(name, cached, folder, "--templates", str(prompts))
    task = provider(mixture(folder, name), prompts)
    made = task.get_dataset(None, split=split, shuffle=False)
    seqio.set_global_cache_dirs([str(cached)])
    read = task.get_dataset(None, split=split, shuffle=False, use_cached=True)
    assert read.element_spec.keys() == made.element_spec.keys()
    pairs = zip(in_order(made), in_order(read), strict=True)
    for expected, example in pairs:
        for feature, value in expected.items():
            np.testing.assert_array_equal(example[feature], value)
            assert np.asarray(example[feature]).dtype == np.asarray(value).dtype


def test_the_files_are_seqios(cached: Path) -> None:
    folder = cached / TRANSLATION
    assert (folder / "COMPLETED").is_file()
    assert len(list(folder.glob("train.tfrecord-*-of-00002"))) == 2
    info = json.loads((folder / "info.train.json").read_text())
    assert info["num_shards"] == 2 and info["seqio_version"] == seqio.__version__
    assert info["features"]["targets"] == {"dtype": "int32", "shape": [None]}
    assert info["features"]["targets_pretokenized"] == {"dtype": "string", "shape": []}
    stats = json.loads((folder / "stats.train.json").read_text())
    inputs = [len(f"Translate from en to ro: {i}: {'a' * (i % 7)}") for i in range(60)]
    targets = [len(f"{i}! {'b' * (i % 5)}") for i in range(60)]
    assert stats == {
        "examples": 60,
        "inputs_tokens": sum(inputs),
        "inputs_max_tokens": max(inputs),
        "targets_tokens": sum(targets),
        "targets_max_tokens": max(targets),
    }


def test_they_are_read_without_the_datasets(cached: Path, mirror: Path, tmp_path: Path) -> None:
    """As P3 is, in which an empty split has an empty description and an empty file."""
    shutil.copytree(cached, tmp_path / "p3")
    (tmp_path / "p3" / TRANSLATION / "info.test.json").write_text("{}\n")
    (tmp_path / "p3" / TRANSLATION / "test.tfrecord-00000-of-00001").write_text("")
    settings = {
        "use_cached": True,
        "cache_dir": (str(tmp_path), str(tmp_path / "p3")),
        "task_feature_lengths": {"inputs": 64, "targets": 16},
    }
    for name in (TRANSLATION, DOCUMENTS):
        found, expected = (
            next(loaders.make_train_iterator(mixture(folder, name, **settings), batch_size=4))
            for folder in (tmp_path / "nothing", mirror)
        )
        for feature, values in expected.items():
            np.testing.assert_array_equal(found[feature], values)


def test_a_cache_of_t0s_tasks_for_mt5_is_found_under_their_own_names(
    tmp_path: Path, prompts: Path, datasets_dir: Path
) -> None:
    name, task_name = "mt5_d4_gpt_sglue_train", "trec_fine_grained_open"
    arguments = [name, "--output", str(tmp_path), "--data-dir", str(datasets_dir)]
    arguments += ["--templates", str(prompts), "--only", task_name, "--vocabulary", "byt5"]
    assert cache.main([*arguments, "--format", "seqio", "--num-workers", "1"]) == 0
    from mtf.data.seqio_tasks import tasks as seqio_tasks

    found = our_mixture(name, load_templates(prompts))
    built = seqio_tasks.build(found, BYTES, datasets_dir).provider
    [task] = [task for task in built.tasks if task.name == f"mt5_{task_name}"]
    assert task.cache_dir is None
    seqio.set_global_cache_dirs([str(tmp_path)])
    read = task.get_dataset(None, split="train", use_cached=True)
    assert len(list(read.as_numpy_iterator())) == 60
