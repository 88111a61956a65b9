"""Steps are counted from the checkpoint that a run starts from; what fiddlers make of a config."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

import recipes
from mtf import config as config_lib
from mtf.base.errors import UserError
from mtf.data.settings import HubStreamConfig, TaskMixtureConfig, TextCorporaConfig, TextFilesConfig
from mtf.models import LoraConfig
from mtf.training import AdamWConfig
from mtf.training.trainer import starting_state
from recipes import fiddlers
from tests import small
from tests.recipes.regenerate import NAMES, RECIPES

# Recipe → its updates after the start.
STEPS: list[tuple[Callable[..., fdl.Config], dict[str, Any], int]] = [
    (recipes.t5_1_1_finetune, {"finetuning_steps": 4}, 4),
    (recipes.t0_3b, {}, 12_200),
    (recipes.mt0_t0pp, {"size": "small"}, 125_000),
    (recipes.mt0_xxl_mt, {}, 30_000),
    (recipes.mt5_lm_adapt, {"size": "small"}, 100_000),
    (recipes.ro_mt5_base, {"files": "ro.txt"}, 1_000_000),
    (recipes.ro_mt5_large, {"files": "ro.txt"}, 500_000),
]


@pytest.fixture
def starts(tmp_path: Path) -> dict[str, int]:
    """Directories of every form, and the step that each is at."""
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model.safetensors").write_bytes(b"")
    (tmp_path / "run" / "checkpoints" / "checkpoint_20").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "checkpoint_100").mkdir()
    (tmp_path / "checkpoint_1234567").mkdir()
    (tmp_path / "mesh").mkdir()
    for step in (300, 1_000_700):
        (tmp_path / "mesh" / f"model.ckpt-{step}.index").write_bytes(b"")
    (tmp_path / "mesh" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-300"\n')
    return {
        str(tmp_path / "hf"): 0,
        str(tmp_path / "run"): 100,
        str(tmp_path / "run" / "checkpoints"): 100,
        str(tmp_path / "checkpoint_1234567"): 1_234_567,
        str(tmp_path / "not-here" / "checkpoint_77"): 77,
        str(tmp_path / "mesh"): 300,
        str(tmp_path / "mesh" / "model.ckpt-1000700"): 1_000_700,
        "gs://t5-data/pretrained_models/mt5/xxl/model.ckpt-1000000": 1_000_000,
    }


@pytest.mark.parametrize(("recipe", "arguments", "updates"), STEPS)
def test_steps_are_counted_from_the_start(
    recipe: Callable[..., fdl.Config],
    arguments: dict[str, Any],
    updates: int,
    starts: dict[str, int],
) -> None:
    for path, step in starts.items():
        config = recipe(checkpoint=path, **arguments)
        assert config.train_steps == step + updates
        assert config.checkpoint.restore.step == step
        fiddlers.short(config, steps=5)
        assert config.train_steps == step + 5
    released = recipe(**arguments)
    assert released.train_steps == released.checkpoint.restore.step + updates


def test_pretraining_goes_on_at_the_rate_of_its_step(starts: dict[str, int]) -> None:
    """1/√step goes on from the million steps of mT5 where the directory does not count them."""
    for path, step in starts.items():
        for config in (
            recipes.ro_mt5_base(files="ro.txt", checkpoint=path),
            recipes.mt5_lm_adapt("small", checkpoint=path),
        ):
            offset = config.optimizer.learning_rate.__arguments__.get("step_offset", 0)
            assert step - offset == (step or 1_000_000)


class _Restored:
    step = 0


class _Trainer:
    def restore_state(self, path: Path, **_: object) -> _Restored:
        return _Restored()


def test_a_start_of_another_step_is_refused(tmp_path: Path) -> None:
    """As when the path is changed after the recipe has counted."""
    config = recipes.t5_1_1_finetune(finetuning_steps=4)
    config.checkpoint.restore.path = str(tmp_path)
    job = fdl.build(config)
    trainer: Any = _Trainer()
    with pytest.raises(UserError) as caught:
        starting_state(trainer, tmp_path / "run", job.checkpoint.restore, job.train_steps)
    message = str(caught.value)
    assert "checkpoint.restore.step=1000000 is the expected step, but" in message
    assert "is at step 0" in message
    assert "--set checkpoint.restore.step=0 train_steps=4" in message


def applied(recipe: str, *fiddlers: str) -> Any:
    """The job of a recipe with fiddlers, as the command line makes it."""
    overrides = [config_lib.Override("apply", fiddler) for fiddler in fiddlers]
    config = config_lib.apply_overrides(config_lib.resolve(f"recipes.{recipe}"), overrides)
    assert config_lib.find_problems(config) == []
    return config_lib.build(config)


TRAINING = sorted(set(NAMES) - {"evaluate", "infer", "mt0_eval", "t0_eval"})


@pytest.mark.parametrize("name", TRAINING)
def test_any_recipe_becomes_small(name: str) -> None:
    before, job = applied(name), applied(name, "smoke_test")
    network = job.model.network
    stack = (network.num_encoder_layers + network.num_decoder_layers) * network.emb_dim
    assert stack * network.mlp_dim < 50_000
    assert network.dtype == "float32" and not network.scan_layers
    assert job.train_steps <= 20 and job.batch_size <= 8
    assert max(job.data.task_feature_lengths.values()) < 100
    assert job.checkpoint.restore is None
    assert job.checkpoint.save.period < job.train_steps
    assert job.partitioner.mesh_shape(1) == (1, 1, 1)
    assert job.model.loss_normalizing_factor == before.model.loss_normalizing_factor
    assert job.optimizer == before.optimizer
    # It needs no network.
    data = job.data
    if name != "quickstart":  # Its data are generated.
        assert isinstance(data, TextFilesConfig)
        files = getattr(before.data, "files", None)
        assert data.files == (None if "hf://" in str(files) else files)
    assert "://" not in getattr(data.vocabulary, "path", "")
    if isinstance(before.data, HubStreamConfig):
        assert data.objective == before.data.objective
        assert data.inputs_add_eos == before.data.inputs_add_eos
    assert data.vocabulary.vocab_size == network.vocab_size == 384


def test_a_smoke_test_keeps_local_data_and_vocabulary() -> None:
    name = "t0pp_xxl(cache_dir='CACHE', vocabulary='t5.model')"
    data = applied(name, "smoke_test").data
    assert isinstance(data, TaskMixtureConfig)
    assert (data.mixture_or_task_name, data.cache_dir) == ("t0++_train", "CACHE")
    assert (data.vocabulary.path, data.vocabulary.extra_ids) == ("t5.model", 100)

    data = applied("mt5_lm_adapt(files={'ro': 'ro.txt', 'en': 'en.txt'})", "smoke_test").data
    assert isinstance(data, TextCorporaConfig)
    assert data.files == {"ro": "ro.txt", "en": "en.txt"}
    assert data.vocabulary.vocab_size == 384  # 259 bytes and specials, 125 sentinels.

    data = applied("ro_t5_base(files='ro.txt', vocabulary='ro.model')", "smoke_test").data
    assert (data.files, data.vocabulary.path, data.vocabulary.extra_ids) == (
        "ro.txt",
        "ro.model",
        0,
    )
    assert not data.inputs_add_eos


def test_a_cache_keeps_its_vocabulary_even_if_that_is_remote() -> None:
    data = applied("t0_xxl(cache_dir='CACHE')", "smoke_test").data
    assert data.vocabulary.path.startswith("gs://")


def test_a_mirror_and_local_files_are_local_data() -> None:
    mirrored = ["data.loader=seqio", "data.data_dir=mirror"]
    overrides = [*mirrored, config_lib.Override("apply", "smoke_test")]
    config = config_lib.apply_overrides(config_lib.resolve("recipes.t0_xxl"), overrides)
    assert config_lib.build(config).data.data_dir == "mirror"

    files = ["data.dataset=json", "data.subsets=None", "data.data_files=en.jsonl"]
    overrides = [*files, config_lib.Override("apply", "smoke_test")]
    config = config_lib.apply_overrides(config_lib.resolve("recipes.t5_1_1_small_c4"), overrides)
    job = config_lib.build(config)
    assert job.data.data_files == "en.jsonl"
    assert job.batch_size % job.data.num_streams == 0


def test_a_smoke_test_gives_only_required_arguments_if_there_are_others() -> None:
    config = config_lib.resolve("recipes.t5_1_1_finetune(size='base')", ["smoke_test"])
    assert config.data.files == "train.tsv"
    assert config_lib.resolve("recipes.t5_1_1_finetune", ["smoke_test"]).data.files != "train.tsv"
    config = config_lib.resolve("recipes.convert(to='t5x')", ["smoke_test"])
    assert Path(config.checkpoint).is_dir() and config.to == "t5x"
    with pytest.raises(UserError, match="needs a value for checkpoint"):
        config_lib.resolve("recipes.convert(to='t5x')", ["local_cpu", "not_there"])


def test_an_evaluation_becomes_small_too() -> None:
    job = applied("t0_eval(checkpoint='run/checkpoints/checkpoint_20')", "smoke_test")
    assert job.batch_size <= 8
    assert job.partitioner.mesh_shape(1) == (1, 1, 1)
    assert job.checkpoint == "run/checkpoints/checkpoint_20"


def test_deterministic_is_t5xs() -> None:
    job = applied("t5_1_1_small_c4", "deterministic")
    assert (job.data.seed, job.random_seed, job.checkpoint.save.period) == (42, 42, 1000)


def test_steps_count_from_the_start() -> None:
    assert applied("t0pp_xxl", "short(steps=7)").train_steps == 1_100_007
    assert applied("ro_t5_base", "short(steps=7)").train_steps == 7
    job = applied("t0pp_xxl", "from_scratch")
    assert (job.train_steps, job.checkpoint.restore) == (12_200, None)
    assert applied("t0pp_xxl", "from_scratch", "short").train_steps == 100


def test_the_others_set_what_they_say() -> None:
    assert applied("ro_t5_base", "no_eval").trainer.eval_period is None
    assert applied("t5_1_1_finetune").evaluator is not None
    assert applied("t5_1_1_finetune", "no_eval").evaluator is None
    job = applied("t5_1_1_finetune", "lora(rank=4, targets=('.*/out',), learning_rate=0.01)")
    assert job.model.network.lora == LoraConfig(rank=4, alpha=16.0, targets=(".*/out",))
    assert isinstance(job.optimizer, AdamWConfig)
    assert job.optimizer.learning_rate.base_learning_rate == 0.01
    rules = applied("ro_t5_large", "fully_sharded").partitioner.logical_axis_rules
    assert rules == applied("mt0_xxl").partitioner.logical_axis_rules
    local = applied("t0pp_xxl", "local_cpu")
    assert local.model.network.dtype == "float32" and not local.model.network.scan_layers
    assert local.partitioner.mesh_shape(1) == (1, 1, 1)


@pytest.mark.parametrize("fiddler", ["short", "no_eval", "deterministic", "from_scratch"])
def test_what_changes_training_refuses_an_evaluation(fiddler: str) -> None:
    with pytest.raises(
        UserError, match=f"^{fiddler}: expected the config of a training job, .*of Evaluate$"
    ):
        applied("t0_eval", fiddler)


def test_fiddlers_are_documented_functions_that_return_nothing() -> None:
    tree = ast.parse(Path(fiddlers.__file__).read_text())
    public = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]
    page = (small.ROOT / "docs" / "recipes.md").read_text()
    for function in public:
        assert ast.unparse(function.returns) == "None"  # type: ignore[arg-type]
        assert f"`{function.name}" in page


CHEAP = ("cache", "convert")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in CHEAP else pytest.mark.slow) for n in RECIPES]
)
def test_any_recipe_of_the_list_runs_offline_as_a_smoke_test(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_network(tmp_path, monkeypatch)
    small.run([f"recipes.{name}", "--apply", "smoke_test"], tmp_path)
    [output] = (tmp_path / "runs").iterdir()
    if name in TRAINING or name in ("finetune", "continue_pretraining"):
        assert small.steps(output)[-1] == 20
    assert len([*output.iterdir()]) > 2


@pytest.mark.parametrize(
    ("recipe", "devices", "data", "checkpoint"),
    [
        ("t0pp_xxl", 8, "python -m mtf.cache 't0++_train'", "t5_1_1_lm100k_xxl/checkpoint_1100000"),
        ("mt0_t0pp", 4, "python -m mtf.cache 'mt5_d4_gpt_sglue_train'", "mt5_xxl/checkpoint_1"),
        (
            "mt0_xl",
            4,
            "hf download bigscience/xP3 --repo-type dataset --include '*/merged_*.jsonl'"
            " --local-dir CACHE/hf/datasets/bigscience/xP3",
            "mt5_xl/checkpoint_1000000",
        ),
        (
            "mt0_xxl_p3",
            4,
            "hf download Muennighoff/P3 --repo-type dataset p31t0_train.zip"
            " --local-dir CACHE/hf/datasets/Muennighoff/P3 && python -m zipfile -e CACHE/hf/",
            "mt5_xxl",
        ),
    ],
)
def test_what_is_missing_is_said_at_once_with_its_commands(
    recipe: str,
    devices: int,
    data: str,
    checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_network(tmp_path / "cache", monkeypatch)
    (tmp_path / "here").mkdir()
    arguments = [f"recipes.{recipe}", "--set", "train_steps=1112200"]
    message = small.run(arguments, tmp_path / "here", status=2)
    assert f"× {devices} = {devices} devices, but there are" in message
    assert data.replace("CACHE", str(tmp_path / "cache")) in message
    assert f"python -m mtf fetch gs://t5-data/pretrained_models/t5x/{checkpoint}" in message
    assert list((tmp_path / "here").iterdir()) == []


def without_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server answers, and nothing has been downloaded."""
    for variable in ("MTF_PROMPTS", "MTF_DATA_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MTF_CACHE", str(cache))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_an_argument_of_a_wrong_type() -> None:
    with pytest.raises(UserError, match=r"^train_steps: expected int, got 'many'\.$"):
        recipes.quickstart(train_steps="many")  # type: ignore[arg-type]
