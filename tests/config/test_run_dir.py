"""The run directory: its files, what may change on resume, and directories of older versions."""

from __future__ import annotations

import json
import platform
import runpy
import subprocess
from pathlib import Path
from typing import Any

import fiddle as fdl
import optax
import pytest

import recipes
from mtf import config as config_lib
from mtf.base.environment import write_environment
from mtf.base.errors import UserError
from mtf.config import allowed, apply_overrides, codegen, serialize
from mtf.config.run_dir import undone_on_refusal
from mtf.data.settings import HubStreamConfig, TextCorporaConfig
from mtf.data.tasks.objectives import BertStyle, IidDenoising
from mtf.data.text.vocabularies import SentencePieceVocabulary
from mtf.evaluation.settings import InferEvalConfig, RankFilesConfig
from mtf.partitioning import FULLY_SHARDED_AXIS_RULES
from mtf.training.settings import AdamWConfig
from tests.config import example


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    allowed.name_modules(example.small())
    config_lib.write_run_dir(directory, example.small(), "python -m mtf.run small", "A title.")
    return directory


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (recipes.quickstart, r"Call it: mtf\.config\.run\(quickstart\(\)\)"),
        (recipes, r"Pass the config that a recipe returns, such as recipes\.quickstart\(\)"),
        ("a.b", r"Write mtf\.config\.run\(mtf\.config\.resolve\('a\.b'\)\)"),
        (3, "takes an fdl.Config, not int"),
    ],
)
def test_only_a_config_runs(given: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        config_lib.run(given)


def test_a_result_of_a_call_cannot_be_stored() -> None:
    config = recipes.quickstart()
    config.optimizer = optax.adam(1e-3)
    with pytest.raises(UserError, match="optimizer: this object does not record how it was made"):
        config_lib.run(config)


def test_files(run_dir: Path) -> None:
    names = {file.name for file in run_dir.iterdir()}
    assert names == {"config.json", "config.py", "config.txt", "overrides.txt", "environment.json"}
    assert config_lib.load_config(run_dir) == config_lib.complete(example.small())
    assert config_lib.load_config(run_dir / "config.json") == config_lib.load_config(run_dir)
    assert runpy.run_path(str(run_dir / "config.py"))["config"]() == config_lib.load_config(run_dir)
    assert "train_steps = 100\n" in (run_dir / "config.txt").read_text()
    assert (run_dir / "overrides.txt").read_text() == "python -m mtf.run small\n"


def test_environment(run_dir: Path) -> None:
    write_environment(run_dir, ["cpu:0"])
    environment = json.loads((run_dir / "environment.json").read_text())
    assert environment["python"] == platform.python_version()
    assert environment["packages"]["fiddle"].startswith("0.3")
    assert environment["devices"] == ["cpu:0"]


def test_git_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def state() -> dict[str, object]:
        write_environment(tmp_path / "run", [])
        environment = json.loads((tmp_path / "run" / "environment.json").read_text())
        return dict(environment["git"])

    git("init", "-q")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    assert state() == {"revision": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "file").write_text("b")
    assert state()["dirty"] is True


def test_history_of_a_stored_config_names_its_file(run_dir: Path) -> None:
    lines = config_lib.as_history_text(config_lib.load_config(run_dir)).splitlines()
    assert all(line.endswith("run/config.json") for line in lines)


def test_new_and_empty_directories_are_fine(tmp_path: Path) -> None:
    config_lib.check_resume(example.small(), tmp_path / "new")
    config_lib.check_resume(example.small(), tmp_path)


def test_harmless_changes_go_on(run_dir: Path) -> None:
    """The field itself is declared free (train_steps), or one above it (logging)."""
    changes = ["train_steps=200", "logging.name=x", "model.network.scan_layers=False"]
    moved = [*changes, "model_dir=/somewhere/else"]
    config_lib.check_resume(apply_overrides(example.small(), moved), run_dir)


def test_other_changes_are_refused_by_name(run_dir: Path) -> None:
    changes = ["train_steps=200", "batch_size=16", "optimizer=@tests.config.example.Adam"]
    with pytest.raises(UserError) as caught:
        config_lib.check_resume(apply_overrides(example.small(), changes), run_dir)
    message = str(caught.value)
    assert "\n  batch_size: 8 → 16" in message
    assert "optimizer: @tests.config.example.Sgd → @tests.config.example.Adam" in message
    assert "train_steps" not in message
    assert "--allow batch_size" in message or "--allow optimizer" in message


def test_allowed_by_name_or_by_what_lies_above(run_dir: Path) -> None:
    changes = ["batch_size=16", "optimizer.learning_rate=1", "optimizer.momentum=0.9"]
    config = apply_overrides(example.small(), changes)
    config_lib.check_resume(config, run_dir, ["batch_size", "optimizer"])
    with pytest.raises(UserError, match=r"optimizer\.momentum"):
        config_lib.check_resume(config, run_dir, ["batch_size", "optimizer.learning_rate"])


def test_allow_of_what_is_not_there(run_dir: Path) -> None:
    with pytest.raises(UserError, match="Did you mean batch_size"):
        config_lib.check_resume(example.small(), run_dir, ["batchsize"])


def test_changed_config_keeps_the_old_ones(run_dir: Path) -> None:
    first = (run_dir / "config.json").read_text()
    config_lib.write_run_dir(run_dir, example.small(), "again")
    assert not (run_dir / "config.1.json").exists()
    for steps in (200, 300):
        config = apply_overrides(example.small(), [f"train_steps={steps}"])
        config_lib.write_run_dir(run_dir, config, f"second {steps}")
    assert (run_dir / "config.1.json").read_text() == first
    assert config_lib.load_config(run_dir / "config.2.json").train_steps == 200
    assert config_lib.load_config(run_dir).train_steps == 300
    assert "train_steps = 300" in (run_dir / "config.txt").read_text()
    assert len((run_dir / "overrides.txt").read_text().splitlines()) == 4


def test_refusal_of_a_new_run_leaves_nothing(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "x"
    with pytest.raises(UserError), undone_on_refusal(run_dir):
        config_lib.write_run_dir(run_dir, example.small(), "command")
        (run_dir / "checkpoints").mkdir()
        raise UserError("no")
    assert list(tmp_path.iterdir()) == []


def test_refusal_of_a_resumed_run_puts_everything_back(run_dir: Path) -> None:
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / "file").write_text("x")
    before = {f: f.read_bytes() for f in run_dir.rglob("*") if f.is_file()}
    with pytest.raises(UserError), undone_on_refusal(run_dir):
        config = apply_overrides(example.small(), ["train_steps=200"])
        config_lib.write_run_dir(run_dir, config, "command")
        assert (run_dir / "config.1.json").exists()
        raise UserError("no")
    assert {f: f.read_bytes() for f in run_dir.rglob("*") if f.is_file()} == before


def test_a_run_that_wrote_something_stays(tmp_path: Path) -> None:
    run_dir = tmp_path / "x"
    with pytest.raises(UserError), undone_on_refusal(run_dir):
        config_lib.write_run_dir(run_dir, example.small(), "command")
        (run_dir / "metrics.jsonl").write_text("{}")
        raise UserError("no")
    assert (run_dir / "config.json").is_file()


# The config.json of runs that version 0.1.0 began.
OLD_RUNS = Path(__file__).parent / "old_runs"


@pytest.mark.parametrize("recipe", ["pretrain_text", "t0pp_xxl", "mt5_lm_adapt"])
def test_an_old_run_of_a_recipe_is_a_new_one(recipe: str) -> None:
    old = config_lib.load_config(OLD_RUNS / f"{recipe}.json")
    new = getattr(recipes, recipe)()
    if recipe == "mt5_lm_adapt":  # 1,000 documents did not fill the 20 batches of an evaluation.
        assert old.data.eval_documents == 1000
        old.data.eval_documents = None
    if recipe == "t0pp_xxl":  # These did not fit a v3-512.
        assert old.model.network.remat_policy == "full"
        old.model.network.remat_policy = "minimal"
        old.partitioner.logical_axis_rules = FULLY_SHARDED_AXIS_RULES
    assert json.loads(config_lib.dump_json(old)) == json.loads(config_lib.dump_json(new))


def _built(name: str) -> Any:
    return fdl.build(config_lib.load_config(OLD_RUNS / f"{name}.json"))


def test_every_component_is_found() -> None:
    corpora = _built("corpora")
    assert isinstance(corpora.data, TextCorporaConfig)
    assert corpora.data.files == {"en": "en.txt"}
    assert corpora.data.objective == BertStyle()
    assert isinstance(corpora.optimizer, AdamWConfig)
    assert corpora.evaluator == InferEvalConfig(metrics=("bleu",))
    stream = _built("stream")
    assert isinstance(stream.data, HubStreamConfig)
    assert stream.data.dataset == "a/b"
    assert stream.data.objective == IidDenoising()
    assert isinstance(stream.data.vocabulary, SentencePieceVocabulary)
    assert _built("rank_files").data == RankFilesConfig(files="mine.jsonl")
    assert _built("infer").decoding.num_beams == 1
    assert _built("convert").dtype == "bfloat16"  # It had fields that were removed.


def test_a_key_with_the_name_of_a_removed_field_stays() -> None:
    config = fdl.Config(HubStreamConfig, dataset="a/b", subsets={"all": 1.0, "en": 2.0})
    there = config_lib.load_json(config_lib.dump_json(config), "here")
    assert fdl.build(there.subsets) == {"all": 1.0, "en": 2.0}


def test_functions_of_private_modules_have_the_names_that_users_import() -> None:
    """Earlier versions stored `optax._src.alias`, which optax may move at any time."""
    config = recipes.pretrain_text()
    schedule = fdl.Config(optax.linear_schedule, 1.0, 0.0, 10)
    config.optimizer = fdl.Config(optax.lion, schedule)
    text = config_lib.dump_json(config)
    assert "_src" not in text
    modules = ("optax", "optax._src.alias"), ("optax", optax.linear_schedule.__module__)
    older = text
    for name, (public, private) in zip(("lion", "linear_schedule"), modules, strict=True):
        stored = f'"module": "{public}",\n{{}}"name": "{name}"'
        indent = text.partition(f'"name": "{name}"')[0].rpartition("\n")[2]
        assert stored.format(indent) in older
        older = older.replace(stored.format(indent), stored.format(indent).replace(public, private))
    assert all(private in older for _, private in modules)
    assert serialize.load_json(older, "config.json") == config
    assert "optimizer = @optax.lion\n" in config_lib.as_flat_text(config)
    code = codegen.as_python(config, "A run.")
    assert "from optax import linear_schedule, lion\n" in code
    assert "_src" not in code


def test_no_old_run_is_left_out() -> None:
    """The names that old configs may hold all lead somewhere."""
    for file in OLD_RUNS.iterdir():
        assert isinstance(config_lib.load_config(file), fdl.Config)
