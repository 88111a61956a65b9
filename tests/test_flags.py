"""Flags that `mtf.run` lacks: the message says how to write them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from mtf.cli.run import main

SMALL = "tests.config.example.small"
T0 = "recipes.t0pp_xxl"

Refusal = Callable[..., str]


@pytest.fixture
def refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refusal:
    """Runs a command line that is refused and writes nothing; returns its message."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> str:
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert list(tmp_path.iterdir()) == []
        return captured.err.removeprefix("error: ").strip()

    return call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SMALL, "--train_steps=5"], "There is no option --train_steps. Write --set train_steps=5"),
        (["--train-steps", "5", SMALL], "--set train_steps=5"),
        (["--train_steps=5", SMALL, "--print", "flat"], "--set train_steps=5"),
        ([SMALL, "--set", "batch_size=4", "--train_steps=5"], "Write --set train_steps=5"),
        ([SMALL, "--z_loss", "-1"], "Write --set model.z_loss=-1"),
        ([SMALL, "--data.files", "my.txt"], "Write --set data.files=my.txt"),
        ([SMALL, "--model_dir=a b"], "Write --set 'model_dir=a b'"),
        ([SMALL, "--data.lengths={'a': 1}"], "Write --set \"data.lengths={'a': 1}\""),
        ([SMALL, "--batch_sise=3"], "Did you mean --set batch_size=3?"),
        (
            [SMALL, "--emb_dim=8"],
            "Did you mean --set model.network.emb_dim=8 or --set evaluation.network.emb_dim=8?",
        ),
        ([SMALL, "--prnt", "flat"], "There is no option --prnt. Did you mean --print?"),
        (["--dryrun", SMALL], "There is no option --dryrun. Did you mean --dry-run?"),
        ([SMALL, "--zzz"], "There is no option --zzz. --help lists the options."),
    ],
)
def test_a_flag_that_is_a_path(refusal: Refusal, arguments: list[str], message: str) -> None:
    assert refusal(*arguments).endswith(message)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--gin.TRAIN_STEPS=1_000", "write --set train_steps=1000"),
        ("--gin.MIXTURE_OR_TASK_NAME='c4'", "write --set data.mixture_or_task_name=c4"),
        ("--gin.INITIAL_CHECKPOINT_PATH='gs://a'", "write --set checkpoint.restore.path=gs://a"),
        ("--gin.DROPOUT_RATE=0.0", "write --set model.network.dropout_rate=0.0"),
        ("--gin.train/utils.DatasetConfig.batch_size=8", "write --set batch_size=8"),
        ("--gin.train_eval/DatasetConfig.split='x'", "write --set data.eval_split=x"),
        ("--gin.trainer.Trainer.num_microbatches=None", "write --set trainer.num_microbatches=1"),
        ("--gin.Adafactor.decay_rate=0.5", "write --set optimizer.decay_rate=0.5"),
        ("--gin_param=run.train_steps = 5", "write --set train_steps=5"),
        ("--gin_bindings=network.T5Config.emb_dim=8", "write --set model.network.emb_dim=8"),
        ("--gin.train.use_orbax=True", "mtf has no setting for it (mtf reads both checkpoint"),
        ("--gin.train.model=@models.MyModel()", "python -m mtf gin translates gin files"),
        ("--gin.MY_MACRO=1", "python -m mtf gin translates gin files"),
        ("--gin_file=my.gin", "python -m mtf gin my.gin --output my_recipe.py"),
        ("--gin_search_paths=a", "python -m mtf gin FILE.gin --output my_recipe.py"),
    ],
)
def test_a_gin_flag(refusal: Refusal, flag: str, message: str) -> None:
    found = refusal(T0, flag)
    assert found.startswith(f"{flag}: ")
    assert message in found


def test_what_the_message_says_is_accepted(
    refusal: Refusal, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = "--gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 6}"
    option, assignment = shlex.split(refusal(T0, flag).partition("write ")[2])
    assert main([T0, option, assignment, "--print", "flat"]) == 0
    assert "data.task_feature_lengths.targets = 6\n" in capsys.readouterr().out


def test_flags_are_reported_with_all_other_mistakes(refusal: Refusal) -> None:
    found = refusal(SMALL, "--train_steps=5", "--prnt=flat", "--set", "modl=3", "batch_size=x")
    assert found.startswith("4 mistakes:")
    for part in ("--set train_steps=5", "mean --print?", "has no field modl", "got the word x"):
        assert part in found


def test_flags_without_a_recipe(refusal: Refusal) -> None:
    assert "no option --train_steps" in refusal("--train_steps=5")
    assert "Did you mean recipes.quickstart?" in refusal("recipes.quickstrt", "--train_steps=5")
