"""`--dry-run`: every recipe is described for its devices, and what would stop a run is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

import recipes
from mtf import builders
from mtf import config as config_lib
from mtf.cli.run import main
from mtf.jobs import Train
from mtf.jobs.description import Description
from tests import small
from tests.cache.helpers import NAME, write_cache
from tests.conversion import writers
from tests.recipes.regenerate import NAMES

# The network of `writers.random_parameters`.
NETWORK = {
    "vocab_size": 384,
    "emb_dim": 32,
    "num_heads": 3,
    "head_dim": 8,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "mlp_dim": 48,
}


def described(config: fdl.Config, **settings: Any) -> Description:
    """The description of a config; a setting's dots are written as `__`."""
    overrides = [
        f"{name.replace('__', '.')}={value if str(value).startswith('@') else repr(value)}"
        for name, value in settings.items()
    ]
    found = fdl.build(config_lib.apply_overrides(config, overrides)).describe()
    assert isinstance(found, Description)
    return found


def tiny(**settings: Any) -> Description:
    """The description of a pretrain_text with `NETWORK`."""
    network = {f"model__network__{name}": value for name, value in NETWORK.items()}
    return described(recipes.pretrain_text(), **{**network, **settings})


def cached(cache_dir: Path, name: str = NAME, **settings: Any) -> Description:
    """The description of training on a byte-level mixture of a token cache."""
    data = (
        f"@mtf.data.TaskMixtureConfig(mixture_or_task_name={name!r}, cache_dir={str(cache_dir)!r}, "
        "vocabulary=@mtf.data.ByteVocabulary(), "
        "task_feature_lengths={'inputs': 64, 'targets': 32})"
    )
    return described(recipes.pretrain_text(), data=data, **settings)


@pytest.fixture(autouse=True)
def without_copies(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No templates, vocabularies or checkpoints were downloaded earlier."""
    for variable in ("MTF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path_factory.mktemp("copies")))
    monkeypatch.delenv("MTF_PROMPTS", raising=False)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cache(tmp_path_factory.mktemp("cached"))


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_described_for_its_devices(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No server answers.
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    job = fdl.build(config_lib.resolve(f"recipes.{name}"))
    rows = job.describe().rows
    partitions = job.partitioner.num_partitions or 1
    assert rows["mesh"] == f"data 1 × fsdp 1 × model {partitions}"
    if partitions > 1:
        assert rows["devices"].startswith(f"{partitions}, or a multiple")
        assert f"does not run: the mesh needs {partitions} devices or a multiple" in rows["here"]
    if isinstance(job, Train):
        tokens = job.batch_size * sum(job.data.task_feature_lengths.values())
        assert rows["tokens per step"].startswith(f"{tokens:,} ")
        assert "per device" in rows["memory"] and rows["parameters"].replace(",", "").isdigit()
        remote = job.checkpoint.restore is not None
        assert rows["start"].startswith("not checked: gs://" if remote else "from scratch")


def test_the_bytes_of_a_device_are_those_of_its_part() -> None:
    rows = described(recipes.t5_1_1_xxl_c4(), partitioner__num_partitions=8).rows
    # The matrices, four bytes a parameter, are split into eight.
    assert rows["parameter bytes"].startswith("44,541,329,408 bytes (41.48 GiB; 5.19 GiB per dev")
    fsdp = {"partitioner__num_partitions": 1, "partitioner__fsdp": 64}
    rows = described(recipes.t5_1_1_xxl_c4(), **fsdp).rows
    assert rows["mesh"] == "data 1 × fsdp 64 × model 1"
    assert rows["devices"] == "64, or a multiple"


def test_a_batch_that_no_mesh_divides_is_refused() -> None:
    found = tiny(batch_size=6, partitioner__fsdp=4)
    assert "batch_size 6 cannot be divided evenly among 4 data shards" in found.problems[0]


def test_a_start_checkpoint_is_checked(tmp_path: Path) -> None:
    path = writers.write_t5x(tmp_path, writers.random_parameters(), step=7)

    def start(where: Path, mode: str = "specific", **settings: Any) -> Description:
        restore = f"@mtf.checkpoints.RestoreCheckpointConfig(path={str(where)!r}, mode={mode!r})"
        scratch = {"checkpoint__restore__fallback_to_scratch": True}
        return tiny(**{"checkpoint__restore": restore, **scratch, **settings})

    found = start(path)
    assert not found.problems
    number = len(writers.random_parameters()) + 1  # and the step
    assert found.rows["start"].startswith(f"{path} (t5x-zarr, step 7): {number} tensors fit, ")
    arrays = writers.mesh(writers.random_parameters(), step=9)
    prefix = writers.write_bundle(tmp_path / "mesh", arrays, step=9)
    for where, mode in (
        (prefix, "specific"),
        (prefix.parent, "specific"),
        (prefix.parent, "latest"),
    ):
        fits = f"{prefix} (mesh-tensorflow, step 9): {number} tensors fit, "
        assert start(where, mode).rows["start"].startswith(fits)
    missing = start(tmp_path / "checkpoint_8")
    assert "checkpoint_8 does not exist. Did you mean checkpoint_7?" in missing.problems[0]
    wide = start(path, model__network__mlp_dim=64)
    message = "mlp/wi_0/kernel: has shape (32, 48) in the checkpoint, but (32, 64) in the model"
    assert message in wide.problems[0]
    deep = start(
        path, model__network__num_encoder_layers=3, checkpoint__restore__fallback_to_scratch=False
    )
    assert "encoder/layers_2/mlp/wo/kernel: missing from the checkpoint" in deep.problems[0]
    late = start(path, train_steps=5)
    assert "already at step 7" in late.problems[0]


def test_all_problems_are_in_one_message(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        f"recipes.t0pp_xxl(cache_dir='{cache}', checkpoint='{tmp_path / 'nowhere'}')",
        *("--dry-run", "--set", "data.mixture_or_task_name=t0++_trian"),
        f"data.vocabulary.path={tmp_path / 'none.model'}",
    ]
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert "parameters       11,135,332,352" in shown.out
    assert "mixture          refused; see the message below" in shown.out
    assert "nowhere does not exist" in shown.err
    assert "none.model does not exist" in shown.err
    assert "there is no mixture 't0++_trian'. Did you mean t0++_train" in shown.err
    assert shown.err.startswith("error: 3 mistakes:\n")
    assert list(tmp_path.iterdir()) == []


def test_an_embedding_that_is_too_small_is_refused() -> None:
    found = tiny(model__network__vocab_size=128)
    assert "model.network.vocab_size is 128, but data.vocabulary has 384 ids" in found.problems[0]


def test_the_tasks_of_a_cache_are_counted(tmp_path: Path, cache: Path) -> None:
    assert cached(cache).rows["data"] == f"the cache {cache}: 2 of 2 tasks, 290 examples"
    part = write_cache(tmp_path, only=("food_*",))
    found = cached(part)
    assert f"1 of the 2 tasks of {NAME} are missing" in found.problems[0]
    found = cached(part, data__allow_missing_tasks=True)
    assert found.rows["data"] == f"the cache {part}: 1 of 2 tasks, 230 examples"
    assert not found.problems
    (part / "food_fruit" / "train-00000-of-00001.array_record").unlink()
    assert "is missing" in cached(part, data__allow_missing_tasks=True).problems[0]
    # Only the cache knows this mixture.
    found = cached(tmp_path / "other")
    assert len(found.problems) == 2
    assert f"there is no mixture {NAME!r}" in found.problems[0]
    assert "other does not exist" in found.problems[1]


def test_files_are_found_but_not_read(tmp_path: Path) -> None:
    file = small.write_text(tmp_path)
    assert tiny(data__files=str(file)).rows["data"].startswith("1 file, 0.0 MB")
    found = tiny(data__files=str(tmp_path / "txet.txt"))
    assert "txet.txt does not exist" in found.problems[0]


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ("summarize: {{articel}}", "'articel' is undefined; the columns are article, summary"),
        ("articel", "there is no column 'articel'; the columns are article, summary. Did you mean"),
    ],
)
def test_columns_are_compared_with_the_first_record(tmp_path: Path, inputs: str, says: str) -> None:
    (tmp_path / "news.tsv").write_text("article\tsummary\na long text\ta text\n")
    config = recipes.pretrain_text()
    config.data = builders.data.files(
        {"train": str(tmp_path / "news.tsv")},
        inputs="article",
        targets="summary",
        vocabulary=config.data.vocabulary,
    )
    assert fdl.build(config).describe().rows["data"].startswith("files: 1 of 1 tasks")
    config.data.task.inputs = inputs
    (problem,) = fdl.build(config).describe().problems
    assert "task files, record 0 of train: " in problem and says in problem


def test_an_evaluation_and_an_inference_without_checkpoint_are_described() -> None:
    for config in (recipes.t0_eval(), recipes.infer()):
        found = fdl.build(config).describe()
        assert any("checkpoint is not set" in problem for problem in found.problems)
        assert "per device" in found.rows["here"] or "does not run" in found.rows["here"]
