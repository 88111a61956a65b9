"""Bad input is refused with one clear message and exit status 2, and nothing is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtf.cli.run import main
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
    ("num_samples=-1", ["num_samples must be at least 0, not -1"]),
    ("random_seed=18446744073709551617", ["random_seed must be in [0, 2**32)", "are 1."]),
    ("optimizer.learning_rate.base_learning_rate=-0.1", ["base_learning_rate", "not -0.1"]),
    (
        "partitioner.logical_axis_rules=(('mlp','modle'),)",
        ["'modle' is not a mesh axis", "mean model?"],
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


# -------------------------------------------------------------------------------------- the data

FILES: list[tuple[str, bytes | None, list[str]]] = [
    ("texts.txt", None, ["data.files: texts.txt does not exist", "Did you mean text.txt?"]),
    ("no/text.txt", None, ["no/text.txt does not exist in /", ", nor does the folder no"]),
    (".", None, ["data.files: . is a directory; expected files"]),
    ("a.txt", b"", ["data.files: a.txt is empty; expected at least one line of text"]),
    ("a.txt", b"\n\n", ["data.files: a.txt is empty; expected at least one line of text"]),
    ("a.txt", "good\ncafé\n".encode("latin-1"), ["a.txt:2: not UTF-8", "byte 4", "0xe9"]),
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


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"data__task_feature_lengths__targets": 6},
            [
                "data.task_feature_lengths['targets'] must be at least 8, not 6",
                "yields 8 target tokens",
            ],
        ),
        (
            {"model__network__vocab_size": 300},
            ["model.network.vocab_size is 300", "has 384 ids, including sentinels", "at least 384"],
        ),
    ],
)
def test_lengths_and_vocabulary(
    refusal: Refusal, settings: dict[str, Any], says: list[str]
) -> None:
    message = refusal(_arguments(**settings))
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
        (".", {"mode": "last"}, "expected 'specific', 'latest' or 'all', got str 'last'"),
        (".", {"mode": "all"}, "checkpoint.restore.mode 'all' is only for evaluation"),
    ],
)
def test_restore_path(refusal: Refusal, path: str, settings: dict[str, str], says: str) -> None:
    assert says in refusal(_arguments(**_restoring(path, **settings)))


def test_restore_path_is_one_checkpoint(refusal: Refusal, finished: Path) -> None:
    path = finished / "checkpoints" / "checkpoint_2"
    message = refusal(_arguments(train_steps=4, **_restoring(path)))
    assert "is a single checkpoint" in message
    assert "checkpoint.restore.mode=specific" in message
