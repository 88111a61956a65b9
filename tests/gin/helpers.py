"""Runs translations in tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from mtf import config as config_lib
from mtf.cli.gin.command import main


@dataclasses.dataclass(frozen=True)
class Gin:
    """Runs `python -m mtf gin`, always with some arguments; returns status, stdout and stderr."""

    capsys: pytest.CaptureFixture[str]
    always: tuple[object, ...] = ()

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.capsys.readouterr()
        status = main([str(each) for each in (*self.always, *arguments)])
        return status, *self.capsys.readouterr()

    def refused(self, *arguments: object) -> str:
        """What is said of gin files or arguments that are refused."""
        status, out, err = self(*arguments)
        assert (status, out) == (2, "")
        return err

    def config(self, *arguments: object) -> fdl.Config:
        """The config of the translated recipe."""
        status, out, err = self(*arguments)
        assert status == 0, err
        return config_of(out)


COMMON = {
    "MIXTURE_OR_TASK_NAME": "'t0_train'",
    "TASK_FEATURE_LENGTHS": "{'inputs': 64, 'targets': 16}",
    "DROPOUT_RATE": "0.1",
}
OWN = {
    "pretrain": {"TRAIN_STEPS": "1000", "MODEL_DIR": "'run'"},
    "finetune": {
        "TRAIN_STEPS": "1_000_100",
        "MODEL_DIR": "'run'",
        "INITIAL_CHECKPOINT_PATH": "'start/checkpoint_1000000'",
    },
    "eval": {"CHECKPOINT_PATH": "'start/checkpoint_1000000'"},
    "infer": {"CHECKPOINT_PATH": "'start/checkpoint_1000000'"},
}


def bindings(**values: str) -> list[str]:
    """`--gin.NAME=VALUE` for each value."""
    return [f"--gin.{name}={value}" for name, value in values.items()]


def config_of(text: str) -> fdl.Config:
    """The config of a printed recipe, which must be code that runs and has no mistakes."""
    namespace: dict[str, Any] = {}
    exec(compile(text, "recipe.py", "exec"), namespace)
    config: fdl.Config = namespace["recipe"]()
    problems = config_lib.find_problems(config) + config_lib.find_refusals(config)
    assert not problems, problems
    return config


def values(config: fdl.Config) -> dict[str, str]:
    """Path → value of every setting of the job, with defaults."""
    lines = config_lib.as_flat_text(config).splitlines()
    pairs = (line.split(" = ", 1) for line in lines if " = " in line)
    return {path.strip(): value.strip() for path, value in pairs}


def differences(one: fdl.Config, other: fdl.Config) -> set[str]:
    """The paths at which two jobs differ."""
    left, right = values(one), values(other)
    return {path for path in left.keys() | right.keys() if left.get(path) != right.get(path)}


def write(folder: Path, name: str, *lines: str) -> Path:
    """Writes a file of some lines."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]))
    return path
