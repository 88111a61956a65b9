"""The jobs that write token caches and convert checkpoints, as recipes and as commands."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conversion import open_checkpoint
from mtf import cache, convert
from mtf.base.errors import UserError
from mtf.cli.options import add_options
from mtf.cli.run import main
from mtf.data import DatasetTaskConfig
from mtf.jobs import Cache, Convert
from mtf.jobs.cache.run import output_of
from tests.inference import models
from tests.small import contents

TASK = "task=@mtf.data.DatasetTaskConfig(files={'train': 'q.jsonl'}, inputs=q, targets=a)"
CACHE = ["mine", "--files", "train=q.jsonl", "--inputs", "q", "--targets", "a", "--output"]
BYTES = ["--vocabulary", "byt5", "--num-workers", "1"]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs mtf.run; returns the exit status and what it printed."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(arguments)
        return status, *capsys.readouterr()

    return call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a file of records and the run of a small model."""
    monkeypatch.chdir(tmp_path)
    rows = ({"q": f"question {i}", "a": f"answer {i * i}"} for i in range(20))
    Path("q.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    models.write_run(Path("run"))
    return tmp_path


def test_recipe_and_command_write_the_same_cache(run: Run) -> None:
    assert cache.main([*CACHE, "a", *BYTES]) == 0
    recipe = "recipes.cache(mixture='mine', output='b', vocabulary='byt5')"
    status, out, _ = run(recipe, "--set", "num_workers=1", TASK)
    assert status == 0 and "b: 1 tasks written" in out and "20 examples from 20 records" in out
    assert contents(Path("a")) == contents(Path("b"))
    assert {"cache.json", "mine/info.json", "mtf_job.json"} < contents(Path("a")).keys()
    assert cache.main(["mine", "--output", "b", "--check"]) == 0


def test_the_default_output_depends_on_what_makes_a_cache_different(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MTF_CACHE", "/c")

    def output(**settings: Any) -> str:
        return output_of(Cache("c4_v220_span_corruption", **settings))

    assert output() == "/c/tokens/c4_v220_span_corruption/t5"
    different: list[dict[str, Any]] = [{"seed": 1}, {"max_rows": 9}, {"format": "seqio"}]
    different += [{"vocabulary": "byt5"}, {"vocabulary": "byt5", "extra_ids": 9}, {}]
    assert len({output(**settings) for settings in different}) == 6


@pytest.mark.parametrize("to", ["hf", "t5x"])
def test_recipe_and_command_write_the_same_export(to: str, run: Run) -> None:
    assert convert.main(["run", "a", "--to", to]) == 0
    assert run(f"recipes.convert(checkpoint='run', output='b', to='{to}')")[0] == 0
    written, same = contents(Path("a")), contents(Path("b"))
    if to == "hf":  # Its title is the name of the directory.
        assert written.pop("README.md").replace(b"# a\n", b"# b\n") == same.pop("README.md")
    assert written == same and len(written) > 4
    assert Convert("run", "c", to).run() == Path("c/checkpoint_7" if to == "t5x" else "c")
    assert contents(Path("c")).keys() == contents(Path("b")).keys()


def test_a_stored_cache_continues(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.main([*CACHE, "a", *BYTES, "--hang-seconds", "0"]) == 0
    for file in Path("a/mine").iterdir():
        file.unlink()
    Path("a/mine").rmdir()
    Path("a").rename("moved")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")  # The config names the records by their absolute path.
    status, out, _ = run("--from", "../moved", "--print", "flat")
    values = dict(line.split(" = ") for line in out.splitlines())
    assert status == 0 and values["task.files.train"] == repr(os.path.abspath("../q.jsonl"))
    assert (values["output"], values["hang_seconds"]) == ("'../moved'", "None")
    assert "1 tasks written" in run("--from", "../moved")[1]
    assert "all 1 tasks are already complete" in run("--from", "../moved")[1]


def test_a_stored_export_is_repeated(run: Run) -> None:
    """Also in a directory that is itself a checkpoint, which stays readable."""
    for to in ("t5x", "mtf"):
        out = Path(to, "checkpoint_7")
        assert convert.main(["run", str(out), "--to", to, "--dtype", "bfloat16"]) == 0
        status, _, error = run("--from", str(out))
        assert status == 2 and f"{out} is not empty" in error
        assert run("--from", str(out), "--set", f"output={to}/again")[0] == 0
        first, again = open_checkpoint(out), open_checkpoint(Path(to, "again"))
        assert first.tensors.keys() == again.tensors.keys()
        assert {x.dtype.name for x in again.parameters().values()} == {"bfloat16"}
    assert "to: 't5x' → 'mtf'" in run("--from", "mtf/again", "--diff", "t5x/again")[1]


def test_dry_runs_write_nothing(run: Run, folder: Path) -> None:
    before = contents(folder)
    status, out, _ = run("recipes.convert(checkpoint='run', output='out')", "--dry-run")
    assert status == 0 and "run/checkpoints/checkpoint_7 (orbax, step 7) → out: 38 tensors" in out
    recipe = "recipes.cache(mixture='mine', output='out', vocabulary='byt5')"
    status, out, _ = run(recipe, "--set", TASK, "--dry-run")
    assert status == 0 and "1 tasks to write" in out and "20 records to read" in out
    assert contents(folder) == before

    Path("full").mkdir()
    Path("full/file").touch()
    status, _, error = run("recipes.convert(checkpoint='none', output='full')", "--dry-run")
    assert status == 2 and "2 mistakes:" in error
    assert "full is not empty" in error and "none" in error
    status, _, error = run(recipe.replace("'out'", "'full'"), "--set", TASK, "--dry-run")
    assert status == 2 and "full is neither empty nor a cache" in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("recipes.convert(chekpoint='run')",), "Did you mean checkpoint?"),
        (("recipes.convert",), "needs a value for checkpoint (str), output (str)"),
        (("recipes.cache(output='o')",), "needs a value for mixture (str)"),
        (("recipes.convert(checkpoint='run', output='o')", "--verify"), "--set verify=VALUE"),
        (("recipes.convert(checkpoint='run', output='o', to='hff')",), "to must be one of 'hf', "),
    ],
)
def test_mistakes(arguments: tuple[str, ...], says: str, run: Run) -> None:
    status, out, error = run(*arguments)
    assert (status, out) == (2, "") and says in error
    assert not Path("o").exists()


def test_all_mistakes_are_reported_together(run: Run) -> None:
    call = "recipes.convert(checkpoint='run', output='o', to='t5x', step=7)"
    error = run(call, "--set", "vocabulary=byt5", "seed=1")[2]
    assert "no field seed" in error
    assert "--vocabulary cannot be used with --to t5x" in error
    with pytest.raises(UserError, match="num_workers must be at least 1"):
        Cache("mine", "o", num_workers=0)


@pytest.mark.parametrize("settings", [Cache, Convert])
def test_each_field_is_an_option(settings: type) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, settings)
    actions = {action.dest: action for action in parser._actions}
    fields = {field.name for field in dataclasses.fields(settings)} - {"task"}
    if settings is Cache:
        fields |= {field.name for field in dataclasses.fields(DatasetTaskConfig)}
    assert all(actions[name].help for name in fields)
    if settings is Convert:
        assert actions["to"].choices == ["hf", "t5x", "t5x_orbax", "mtf", "peft"]
        assert actions["step"].type is int and actions["ema"].nargs == 0
        assert "(default: 5GB)" in (actions["max_shard_size"].help or "")


def test_options_of_a_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.main([*CACHE[:3], "--output", "o"]) == 2
    assert "--inputs is missing; expected name of a column" in capsys.readouterr().err
    assert cache.main(["mine", "--files", "q.jsonl", "--inputs", "q", *CACHE[5:], "o"]) == 2
    assert "--files q.jsonl: expected NAME=VALUE" in capsys.readouterr().err
