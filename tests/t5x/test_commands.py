"""`--engine t5x` as a user types it: relative paths, other commands on its runs, and mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mtf.cli import status
from mtf.cli.run import main
from mtf.inference import opening
from tests import small
from tests.t5x import T5X_MISSING

needs_t5x = pytest.mark.skipif(T5X_MISSING, reason="T5X is not installed (docs/t5x.md)")


def test_a_comparison_of_configs_of_mtf_takes_no_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes.pretrain_text", "--engine", "t5x", "--diff=recipes.pretrain_text"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "--diff shows mtf's config of a recipe" in shown.err


@needs_t5x
def test_a_mistake_in_the_data_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.md").write_text("words\n")
    command = ["recipes.pretrain_text", "--set", "data.files=text.md", "model_dir=runs/new"]
    assert main([*command, "--engine", "t5x"]) == 2
    assert "data.files: text.md has an unknown suffix" in capsys.readouterr().err
    assert not Path("runs").exists()


@needs_t5x
def test_a_run_in_a_relative_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = small.write_text(tmp_path)
    settings = {"train_steps": 2, "checkpoint.save.period": 2, "model_dir": "runs/one"}
    settings["model.network.dropout_rate"] = 0.3
    command = [*small.arguments(text, **settings), "--engine", "t5x"]
    assert main(command) == 0
    assert Path("runs/one/checkpoint_2").is_dir()

    # The checkpoint is opened with the config of the run, which no tensor shows.
    opened = opening.open_model("runs/one")
    assert opened.model.network.dropout_rate == 0.3
    assert opened.run is not None
    shown = status.read_status("runs/one")
    assert (shown.state, shown.step, shown.checkpoint_step) == ("finished", 2, 2)

    # Once more, with fewer steps, and for more devices than there are: nothing is trained, and
    # nothing is written.
    config = Path("runs/one/config.json").read_text()
    for steps, mesh in ((2, []), (1, []), (2, ["--set", "partitioner.num_partitions=64"])):
        capsys.readouterr()
        assert main([*command, "--set", f"train_steps={steps}", *mesh]) == 0
        shown_text = capsys.readouterr().out
        assert f"is at step 2 of {steps}: nothing to train" in shown_text
        assert "--engine t5x --set train_steps=3" in shown_text
    assert Path("runs/one/config.json").read_text() == config


@needs_t5x
def test_the_printed_config_names_absolute_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recipes.pretrain_text", "--engine", "t5x", "--print", "python"]) == 0
    found = re.search(r"model_dir=['\"](.*?)['\"]", capsys.readouterr().out)
    assert found is not None
    assert found[1] == str(tmp_path / "runs" / "pretrain_text-t5x")
