"""Bad input is refused with one clear message and exit status 2, and nothing is written."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recipes
from mtf.base.errors import UserError
from mtf.cli.convert import command as convert
from mtf.cli.run import main
from mtf.t5x import lowering
from tests import small

Refusal = Callable[[list[str]], str]


def _content(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: empty but for text.txt."""
    monkeypatch.chdir(tmp_path)
    small.write_text(tmp_path)
    return tmp_path


@pytest.fixture
def refusal(folder: Path, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Runs a command line that must be refused; returns what it says."""

    def call(arguments: list[str]) -> str:
        before = _content(folder)
        capsys.readouterr()
        status = main(arguments)
        out, err = capsys.readouterr()
        assert (status, out) == (2, "")
        _check_message(err)
        assert _content(folder) == before
        return err

    return call


def _check_message(text: str) -> None:
    assert text.startswith("error: ")
    assert text.count("error:") == 1
    assert "Traceback" not in text


def _arguments(text: str = "text.txt", **settings: Any) -> list[str]:
    return small.arguments(text, **{"train_steps": 2, **settings})


def _restoring(path: Path | str, **settings: Any) -> dict[str, str]:
    """Settings that start from a checkpoint."""
    values = "".join(f", {name}={value!r}" for name, value in settings.items())
    restore = "@mtf.checkpoints.settings.RestoreCheckpointConfig"
    return {"checkpoint__restore": f"{restore}(path={str(path)!r}{values})"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that has ended at step 2; no test changes it."""
    folder = tmp_path_factory.mktemp("finished")
    text = small.write_text(folder)
    settings = {"model_dir": "run", "model__network__scan_layers": True}
    small.run(_arguments(str(text), **settings), folder)
    return folder / "run"


# ----------------------------------------------------------------------------- the command line

OVERRIDES: list[tuple[str, list[str]]] = [
    ("optimizer=3", ["expected AdafactorConfig, AdamWConfig or GradientTr", "got int 3"]),
    ("model.network.dtype=float16", ["model.network.dtype", "overflow", "'bfloat16'"]),
    ("checkpoint.save.dtype=float16", ["checkpoint.save.dtype", "Did you mean bfloat16"]),
    ("trainer.num_microbatches=3", ["batch_size 8", "num_microbatches 3", "Nearest: 6 or 9"]),
    ("checkpoint.save.keep=0", ["checkpoint.save: keep must be at least 1 or None, not 0"]),
    ("optimizer.lr=0.1", ["no field lr. Did you mean optimizer.learning_rate,"]),
    ("num_samples=-1", ["num_samples must be at least 0, not -1"]),
    ("random_seed=18446744073709551617", ["random_seed must be in [0, 2**32)", "are 1."]),
    ("optimizer.learning_rate.base_learning_rate=-0.1", ["base_learning_rate", "not -0.1"]),
    (
        "partitioner.logical_axis_rules=(('mlp','modle'),)",
        ["'modle' is not a mesh axis", "mean model?"],
    ),
    (
        "data.task_feature_lengths.targets=6",
        ["lengths['targets'] must be at least 8, not 6", "yields 8 target tokens"],
    ),
    (
        "model.network.vocab_size=300",
        ["model.network.vocab_size is 300", "has 384 ids, including sentinels", "at least 384"],
    ),
    # No machine holds these.
    ("model.network.mlp_dim=1000000000", ["parameters 768,000", "gradients", "GiB"]),
    ("model.network.num_encoder_layers=1000000000", ["at most 10,000, not 1000000000"]),
    (
        "data.task_feature_lengths.inputs=1000000000000",
        ["'inputs'", "must be at most 1,048,576, not 1,000,000,000,000"],
    ),
    ("batch_size=8000000000", ["batch 2,048,000,000,000", "activations"]),
]


@pytest.mark.parametrize(("override", "says"), OVERRIDES, ids=[text for text, _ in OVERRIDES])
def test_override(refusal: Refusal, override: str, says: list[str]) -> None:
    message = refusal([*_arguments(), override])
    assert all(part in message for part in says), message


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "."], "it contains no config.json"),
        (["--from", "text.txt"], "text.txt is not JSON"),
    ],
)
def test_arguments(refusal: Refusal, arguments: list[str], says: str) -> None:
    assert says in refusal(arguments)


def test_a_setting_that_is_an_argument_of_the_recipe(refusal: Refusal) -> None:
    said = refusal(["recipes.pretrain_text", "--set", "files=a.txt"])
    assert "Train has no field files." in said
    assert said.endswith(
        """of the recipe: python -m mtf.run "recipes.pretrain_text(files='a.txt')"\n"""
    )


# -------------------------------------------------------------------------------------- the data

FILES: list[tuple[str, bytes | None, list[str]]] = [
    ("texts.txt", None, ["data.files: texts.txt does not exist", "Did you mean text.txt?"]),
    ("no/text.txt", None, ["no/text.txt does not exist in /", ", nor does the folder no"]),
    (".", None, ["data.files: . is a directory; expected files"]),
    ("a.txt", b"", ["data.files: a.txt is empty; expected at least one line of text"]),
    ("a.txt", b"\n\n", ["data.files: a.txt is empty; expected at least one line of text"]),
    ("a.txt", "good\ncafé\n".encode("latin-1"), ["a.txt:2: not UTF-8", "byte 4", "0xe9"]),
    ("a.txt", "good\n".encode("utf-16"), ["a.txt:1: UTF-16, not UTF-8", "iconv -f UTF-16 -t UT"]),
    ("a.tsv", b"one\ttwo\nthree\n", ["a.tsv:2: expected 2 columns (inputs, targets), not 1"]),
    ("a.txt.gz", b"text", ["data.files: a.txt.gz cannot be read"]),
]


@pytest.mark.parametrize(("name", "content", "says"), FILES)
def test_file(
    refusal: Refusal, folder: Path, name: str, content: bytes | None, says: list[str]
) -> None:
    if content is not None:
        (folder / name).write_bytes(content)
    message = refusal(_arguments(name))
    assert all(part in message for part in says), message


# ------------------------------------------------------------------------------- run directories


@pytest.mark.parametrize(
    ("model_dir", "says"),
    [
        (".", "is not empty and is not a run directory"),
        ("text.txt", "model_dir: text.txt is a file, not a directory"),
        ("text.txt/run", "model_dir: text.txt/run cannot be used: Not a directory"),
        ("/proc/run", "model_dir: /proc/run cannot be used"),
    ],
)
def test_model_dir(refusal: Refusal, model_dir: str, says: str) -> None:
    assert says in refusal(_arguments(model_dir=model_dir))


def test_text_has_changed_since(refusal: Refusal, finished: Path, folder: Path) -> None:
    shutil.copytree(finished, folder / "run")
    small.write_text(folder, num_lines=100)
    message = refusal(
        ["--from", "run", "--allow", "data.files", "--set", "data.files=text.txt", "train_steps=4"]
    )
    assert (
        "the data position in the checkpoint belongs to different training text or settings"
        in message
    )


def test_checkpoint_without_its_place_in_the_data(
    refusal: Refusal, finished: Path, folder: Path
) -> None:
    shutil.copytree(finished, folder / "run")
    shutil.rmtree(folder / "run" / "checkpoints" / "checkpoint_2" / "data")
    message = refusal(["--from", "run", "--set", "train_steps=4"])
    assert "run/checkpoints/checkpoint_2 has no saved data position" in message


# ----------------------------------------------------------------------------------- checkpoints


def test_checkpoint_of_another_shape(refusal: Refusal, finished: Path) -> None:
    message = refusal(
        _arguments(train_steps=4, model__network__vocab_size=512, **_restoring(finished))
    )
    assert f"The checkpoint {finished}/checkpoints/checkpoint_2 does not fit this model" in message
    kernel, embedding = "target/decoder/logits_dense/kernel", "target/token_embedder/embedding"
    assert (
        f"\n  {kernel}: has shape (32, 384) in the checkpoint, but (32, 512) in the model"
        in message
    )
    assert (
        f"\n  {embedding}: has shape (384, 32) in the checkpoint, but (512, 32) in the model"
        in message
    )


def test_checkpoint_without_optimizer_state(
    refusal: Refusal, finished: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = str(folder / "bare")
    assert convert.main([str(finished), bare, "--to", "mtf", "--optimizer", "drop"]) == 0
    message = refusal(_arguments(train_steps=4, **_restoring(bare)))
    said = f"error: The checkpoint {bare}/checkpoint_2 has no optimizer state. To start a new run"
    assert message.startswith(said) and message.count("\n") == 1
    _, assignment = shlex.split(message[message.index("--set") :])
    arguments = _arguments(train_steps=4, **_restoring(bare))
    assert main([*arguments, assignment, "--dry-run"]) == 0
    assert "step 2): " in capsys.readouterr().out


def test_train_steps_are_absolute(refusal: Refusal, finished: Path) -> None:
    message = refusal(_arguments(train_steps=2, **_restoring(finished)))
    assert "train_steps 2 is the total number of steps" in message
    assert "at step 2" in message
    assert "train_steps=4" in message


@pytest.mark.parametrize(
    ("path", "settings", "says"),
    [
        ("nowhere", {}, "checkpoint.restore.path: nowhere does not exist"),
        ("text.tx", {}, "text.tx does not exist. Did you mean text.txt?"),
        ("text.txt", {}, "text.txt is a file; expected a checkpoint_STEP directory"),
        (".", {}, "checkpoint.restore.path: . contains no complete checkpoint_STEP directory"),
        (".", {"mode": "specific"}, "There is no checkpoint in ."),
        (".", {"mode": "last"}, "expected 'specific' or 'latest', got str 'last'"),
    ],
)
def test_restore_path(refusal: Refusal, path: str, settings: dict[str, str], says: str) -> None:
    assert says in refusal(_arguments(**_restoring(path, **settings)))


def test_restore_path_is_one_checkpoint(refusal: Refusal, finished: Path) -> None:
    path = finished / "checkpoints" / "checkpoint_2"
    message = refusal(_arguments(train_steps=4, **_restoring(path)))
    assert "contains no complete checkpoint_STEP directory" in message
    assert "checkpoint.restore.mode=specific" in message


def test_a_sweep_without_optuna_names_the_extra(
    refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    message = refusal([*_arguments(model_dir="sweep"), "--sweep", "random_seed=0,1"])
    assert "--sweep needs the package optuna, which is not installed" in message
    assert "run: pip install 'mtf-jax[optuna]'" in message


SMALL = "tests.config.example.small"
T0 = "recipes.t0pp_xxl"


@pytest.fixture
def message_of(refusal: Refusal) -> Callable[..., str]:
    """Runs a command line that is refused; returns its message."""
    return lambda *arguments: refusal([*arguments]).removeprefix("error: ").strip()


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
def test_a_flag_that_is_a_path(
    message_of: Callable[..., str], arguments: list[str], message: str
) -> None:
    assert message_of(*arguments).endswith(message)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--gin.TRAIN_STEPS=1_000", "Write --set train_steps=1_000"),
        ("--gin.MIXTURE_OR_TASK_NAME='c4'", "Write --set \"data.mixture_or_task_name='c4'\""),
        ("--gin.train/utils.DatasetConfig.batch_size=8", "Write --set batch_size=8"),
        ("--gin.Adafactor.decay_rate=0.5", "Write --set optimizer.decay_rate=0.5"),
        ("--gin_param=run.train_steps = 5", "Write --set train_steps=5"),
        ("--gin.MY_MACRO=1", "python -m mtf gin FILE.gin --output my_recipe.py translates gin"),
        ("--gin_file=my.gin", "python -m mtf gin FILE.gin --output my_recipe.py translates gin"),
    ],
)
def test_a_gin_flag(message_of: Callable[..., str], flag: str, message: str) -> None:
    found = message_of(T0, flag)
    assert found.startswith(f"There is no option {flag.partition('=')[0]}. ")
    assert message in found


def test_what_the_message_says_is_accepted(
    message_of: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    flag = "--gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 6}"
    option, assignment = shlex.split(message_of(T0, flag).partition("Write ")[2])
    assert main([T0, option, assignment, "--print", "flat"]) == 0
    assert "data.task_feature_lengths.targets = 6\n" in capsys.readouterr().out


def test_flags_are_reported_with_all_other_mistakes(message_of: Callable[..., str]) -> None:
    found = message_of(SMALL, "--train_steps=5", "--prnt=flat", "--set", "modl=3", "batch_size=x")
    assert found.startswith("4 mistakes:")
    for part in ("--set train_steps=5", "mean --print?", "has no field modl", "got the word x"):
        assert part in found


def test_flags_without_a_recipe(message_of: Callable[..., str]) -> None:
    assert "no option --train_steps" in message_of("--train_steps=5")
    assert "Did you mean recipes.quickstart?" in message_of("recipes.quickstrt", "--train_steps=5")


PAGE = Path(__file__).parents[1] / "docs/t5x.md"
REFUSED = "--engine t5x needs t5x, which is not installed"


@pytest.mark.skipif(importlib.util.find_spec("t5x") is not None, reason="T5X is installed")
@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--print", "python"]])
def test_without_t5x_the_message_has_the_command_that_installs_it(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    arguments = ["recipes.quickstart", "--set", f"model_dir={run_dir}", "--engine", "t5x"]
    assert main([*arguments, *more]) == 2
    shown = capsys.readouterr().err
    assert REFUSED in shown and "pip install" in shown
    for commit in ("t5x@cc342d419ec3", "airio@69897df7d9a4", "CommonLoopUtils@04ad2f9edbd5"):
        assert commit in shown and commit in PAGE.read_text()
    assert not run_dir.exists()


@pytest.mark.skipif(importlib.util.find_spec("t5x") is not None, reason="T5X is installed")
def test_another_commit_of_t5x_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("t5x/__init__.py", "airio/one.py", "t5x-0.0.0.dist-info/METADATA"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("Name: t5x\n" * ("METADATA" in name))
    url = {"url": "https://t5x", "vcs_info": {"vcs": "git", "commit_id": "0123456789" * 4}}
    (tmp_path / "t5x-0.0.0.dist-info/direct_url.json").write_text(json.dumps(url))
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["recipes.quickstart", "--engine", "t5x", "--dry-run"]) == 2
    shown = capsys.readouterr().err
    assert "t5x is installed at commit 0123456, but mtf is tested with cc342d4" in shown


def test_what_t5x_lacks_is_refused_before_it_is_imported() -> None:
    config = recipes.quickstart()
    config.partitioner.fsdp = 4
    config.trainer.profile = "10:12"
    with pytest.raises(UserError, match=r"trainer\.profile = '10:12': ") as error:
        lowering.check(config)
    assert "partitioner.fsdp = 4: T5X's mesh has no axis fsdp" in str(error.value)


def test_lowering_accounts_for_every_setting_of_every_recipe() -> None:
    for name in ("quickstart", "t5_1_1_finetune", "t5_1_1_xl_c4", "mt0_xxl", "t0pp_xxl"):
        lowering.check(getattr(recipes, name)())
