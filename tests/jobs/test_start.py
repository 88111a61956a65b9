"""A job that Python starts is checked and stored as one that the command line starts."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

import conversion
import recipes
from mtf import config as config_lib
from mtf.base.errors import UserError
from mtf.cli.run import main
from mtf.data import ByteVocabulary, TextFilesConfig
from mtf.inference.opening import read_run_config
from mtf.jobs import Evaluate, Infer, Train, TrainResult
from mtf.models.settings import ModelConfig, T5Config
from mtf.training.settings import AdamWConfig, ScheduleConfig
from tests import small

STEPS = 2
_SCHEDULE = ScheduleConfig(factors="constant", base_learning_rate=1e-3)


def _config(folder: Path, **settings: Any) -> fdl.Config[Train]:
    """A tiny pretrain_text whose network no tensor tells: silu, and its own dropout."""
    values = {
        **small.SETTINGS,
        "data.files": str(folder / "text.txt"),
        "model.network.mlp_activations": ("silu", "linear"),
        "model.network.dropout_rate": 0.05,
        "train_steps": STEPS,
        "trainer.eval_period": STEPS,
        "trainer.eval_steps": 1,
        **settings,
    }
    overrides = [f"{name}={value}" for name, value in values.items()]
    return config_lib.apply_overrides(recipes.pretrain_text(), overrides)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """The result of `fdl.build(config).run()` in `FOLDER/run`; no test changes its directory."""
    folder = tmp_path_factory.mktemp("start")
    small.write_text(folder)
    result = fdl.build(_config(folder, model_dir=folder / "run")).run()
    assert isinstance(result, TrainResult)
    return result


def test_the_run_directory_holds_the_config(trained: TrainResult) -> None:
    run_dir = trained.model_dir
    expected = _config(run_dir.parent, model_dir=run_dir)
    assert (run_dir / "config.json").read_text() == config_lib.dump_json(expected)
    assert "('silu', 'linear')" in (run_dir / "config.txt").read_text()
    for name in ("config.py", "overrides.txt", "environment.json"):
        assert (run_dir / name).is_file()


def test_the_result_says_what_came_of_the_run(trained: TrainResult) -> None:
    assert (trained.step, trained.stopped_by) == (STEPS, None)
    assert list(trained.checkpoints) == [STEPS]
    assert trained.checkpoints[STEPS].is_dir()
    lines = (trained.model_dir / "train" / "metrics.jsonl").read_text().splitlines()
    assert trained.metrics["train/loss"] == json.loads(lines[-1])["loss"]
    assert trained.metrics["training_eval/held_out/accuracy"] >= 0
    assert "train/step" not in trained.metrics


def test_export_and_inference_know_the_network(trained: TrainResult) -> None:
    run = read_run_config(conversion.open_checkpoint(trained.model_dir))
    assert run is not None
    assert run.model.network.mlp_activations == ("silu", "linear")
    assert run.described["dropout_rate"] == 0.05


def test_another_config_is_refused_in_the_same_directory(trained: TrainResult) -> None:
    run_dir = trained.model_dir
    before = small.contents(run_dir)
    other = fdl.build(_config(run_dir.parent, model_dir=run_dir, random_seed=3))
    with pytest.raises(UserError, match="random_seed: 0 → 3"):
        other.run()
    assert small.contents(run_dir) == before
    assert other.run(allow=["random_seed"]).step == STEPS


def test_a_finished_run_says_so_at_once(
    trained: TrainResult, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, and what trains is not even imported."""
    run_dir = trained.model_dir
    before = small.contents(run_dir)
    monkeypatch.delitem(sys.modules, "mtf.training.loop")
    assert main(["--from", str(run_dir)]) == 0
    assert f"at step {STEPS} of {STEPS}: nothing to train" in capsys.readouterr().out
    again = fdl.build(_config(run_dir.parent, model_dir=run_dir)).run()
    assert again == trained
    assert "mtf.training.loop" not in sys.modules
    assert small.contents(run_dir) == before


def _plain_job(run_dir: Path | None = None, **settings: Any) -> Train:
    """A job made without Fiddle."""
    network = T5Config(
        vocab_size=384,
        emb_dim=32,
        num_heads=2,
        head_dim=16,
        mlp_dim=64,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    files = fdl.Config(
        TextFilesConfig,
        vocabulary=fdl.Config(ByteVocabulary),
        task_feature_lengths={"inputs": 32, "targets": 16},
    )
    values: dict[str, Any] = {
        "model": ModelConfig(network),
        "data": config_lib.build(files),
        "optimizer": AdamWConfig(_SCHEDULE),
        "train_steps": 10,
        "batch_size": 16,
        "model_dir": None if run_dir is None else str(run_dir),
        **settings,
    }
    return Train(**values)


def test_a_job_made_without_fiddle_is_stored_and_reloads(tmp_path: Path) -> None:
    job = _plain_job(tmp_path / "run")
    with config_lib.in_run_directory(job) as started:
        assert started == job
    assert config_lib.build(config_lib.load_config(tmp_path / "run")) == job


def test_values_take_the_form_of_their_types(tmp_path: Path) -> None:
    """As on the command line: an int is fine for a float, a list for a tuple."""
    optimizer = AdamWConfig(ScheduleConfig(factors="constant", base_learning_rate=1))
    with config_lib.in_run_directory(_plain_job(tmp_path / "run", optimizer=optimizer)) as started:
        assert type(started.optimizer.learning_rate.base_learning_rate) is float


@pytest.mark.parametrize("method", ["run", "describe"])
def test_wrong_types_are_refused_as_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.chdir(tmp_path)
    job = _plain_job(batch_size=16.0, num_samples=1.0)
    with pytest.raises(UserError) as caught:
        getattr(job, method)()
    message = str(caught.value)
    assert "batch_size: expected int, got float 16.0. Write 16." in message
    assert "num_samples: expected int, got float 1.0" in message
    assert "the arguments of Train" in message
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_compared_is_refused_when_the_job_is_made() -> None:
    with pytest.raises(UserError) as caught:
        _plain_job(batch_size="16", random_seed="1")
    message = str(caught.value)
    assert "batch_size: expected int, got str '16'" in message
    assert "random_seed: expected int, got str '1'" in message


def test_wrong_types_of_other_jobs(tmp_path: Path) -> None:
    infer = Infer(checkpoint=str(tmp_path), files="x.txt", batch_size=4.0)  # type: ignore[arg-type]
    evaluate = Evaluate(str(tmp_path), None, batch_size=4.0)  # type: ignore[arg-type]
    for job in (infer, evaluate):
        with pytest.raises(UserError, match=r"batch_size: expected int, got float 4\.0"):
            job.run()


def test_a_part_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    """A class of a function has no name by which a config could load it."""

    @dataclasses.dataclass(frozen=True)
    class Mine(AdamWConfig):
        pass

    with pytest.raises(UserError, match="could not be resumed"):
        _plain_job(tmp_path / "run", optimizer=Mine(_SCHEDULE)).run()
    with pytest.raises(
        UserError,
        match="optimizer: expected AdafactorConfig, AdamWConfig or GradientTransformation, got obj",
    ):
        _plain_job(tmp_path / "run", optimizer=object()).run()
    assert list(tmp_path.iterdir()) == []
