"""`python -m mtf.run` and `python -m mtf`, as a user meets them."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import mtf
from mtf import __main__ as cli
from mtf import config as config_lib
from mtf.cli.run import main
from tests.small import python

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "tests.config.example"
SMALL = f"{PACKAGE}.small"

Run = Callable[..., tuple[int, str, str]]
Project = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in an empty folder; returns exit status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_run_writes_the_run_directory(run: Run, tmp_path: Path) -> None:
    status, _, err = run(SMALL, "--set", "train_steps=3", "batch_size=4", "model_dir=out")
    assert (status, err) == (0, "")
    assert (tmp_path / "out" / "ran.txt").read_text() == "3 4\n"
    command = (tmp_path / "out" / "overrides.txt").read_text()
    assert command == f"python -m mtf.run {SMALL} --set train_steps=3 batch_size=4 model_dir=out\n"
    assert "batch_size = 4" in (tmp_path / "out" / "config.txt").read_text()


def test_run_directory_has_a_name_by_default(run: Run, tmp_path: Path) -> None:
    assert run(SMALL)[0] == 0
    assert run(SMALL)[0] == 0
    directories = sorted((tmp_path / "runs").iterdir())
    assert len(directories) == 2
    assert directories[0].name.startswith("small-20")
    stored = config_lib.load_config(directories[0])
    assert stored.model_dir == f"runs/{directories[0].name}"


def test_resume_from_a_run_directory(run: Run, tmp_path: Path) -> None:
    run(SMALL, "--set", "model_dir=out")
    shutil.move("out", "moved")
    assert run("--from", "moved", "--set", "train_steps=7")[0] == 0
    assert (tmp_path / "moved" / "ran.txt").read_text() == "7 8\n"
    assert (tmp_path / "moved" / "config.1.json").is_file()
    assert not (tmp_path / "out").exists()


def test_resume_with_another_config(run: Run, tmp_path: Path) -> None:
    run(SMALL, "--set", "model_dir=out")
    before = (tmp_path / "out" / "config.json").read_text()
    again = (SMALL, "--set", "model_dir=out", "model.network.dropout_rate=0.5")
    status, _, err = run(*again)
    assert status == 2
    assert "model.network.dropout_rate: 0.1 → 0.5" in err
    assert (tmp_path / "out" / "config.json").read_text() == before
    allow = ("--allow", "model.network.dropout_rate", "--allow", "evaluation.network")
    assert run(*again, *allow)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((SMALL, "--set", "fail=user"), "the batch does not divide the mesh."),
        (("tests.config.example.smal",), "Did you mean tests.config.example.small?"),
        (("tests.config.exampel.small",), "There is no recipe tests.config.exampel.small."),
        (("tests.config.example",), "is a module, not a recipe"),
        (("no_such_package.recipe",), "There is no recipe no_such_package.recipe."),
        ((f"{SMALL}(emb_dim='x')",), "expected int, got str 'x'"),
        ((f"{SMALL}(emb_dims=3)",), "has no argument emb_dims"),
        ((f"{SMALL}(3)",), "keyword arguments"),
        ((f"{SMALL}(emb_dim=3",), "keyword arguments"),
        (("tests.config.example.no_config",), "A recipe must return an fdl.Config"),
        (("tests.config.example.broken",), "no_such_argument"),
        (("tests.config.example.wrong_types",), "batch_size: expected int, got str '8'"),
        ((SMALL, "train_steps=3"), "--set train_steps=3"),
        ((SMALL, SMALL), "Expected one recipe"),
        (("tests.config.example.no_job",), "is not a job"),
        ((SMALL, "--from", "x"), "Leave out"),
        (("--from", "x"), "There is no run directory or config file x"),
        ((SMALL, "--diff", "nothing.there"), "There is no recipe nothing.there"),
        ((), "No recipe was given"),
        (("missing.py:recipe",), "There is no file missing.py"),
    ],
)
def test_refused(run: Run, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    status, out, err = run(*arguments)
    assert status == 2
    assert err.startswith("error: ")
    assert says in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_that_is_not_there_is_suggested(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs" / "quickstart-20260101-000000").mkdir(parents=True)
    _, _, err = run("--from", "runs/quickstart-…")
    assert err.endswith("file runs/quickstart-…. Did you mean quickstart-20260101-000000?\n")


def test_a_dry_run_writes_nothing(run: Run, tmp_path: Path) -> None:
    status, out, _ = run(SMALL, "--dry-run", "--set", "train_steps=5")
    assert (status, out) == (0, "a job of 5 steps\n")
    status, out, _ = run(SMALL, "--dry-run", "--print", "flat", "--set", "train_steps=5")
    assert status == 0
    assert "train_steps = 5\n" in out
    assert out.endswith("a job of 5 steps\n")
    assert run("tests.config.example.unfinished", "--print", "flat", "--dry-run")[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_all_kinds_of_mistakes_are_reported_at_once(run: Run) -> None:
    overrides = ("batch_sise=3", "train_steps=1e6", "model.network.num_heads=5")
    status, _, err = run(SMALL, "--set", *overrides)
    assert status == 2
    assert "3 mistakes" in err
    assert "Did you mean batch_size?" in err
    assert "Write 1000000." in err
    assert "model.network: emb_dim 64 is not a multiple of num_heads 5." in err


def test_job_without_a_run_directory(run: Run, tmp_path: Path) -> None:
    assert run("tests.config.example.plain(size=3)")[1] == "plain 3\n"
    assert list(tmp_path.iterdir()) == []


def test_recipe_after_set(run: Run) -> None:
    assert run("--set", "train_steps=5", SMALL, "--dry-run")[1] == "a job of 5 steps\n"


def test_options_apply_in_order(run: Run) -> None:
    fiddler = ("--apply", "tests.config.example.short(steps=6)")
    assert run(SMALL, "--set", "train_steps=5", *fiddler, "--dry-run")[1] == "a job of 6 steps\n"
    assert run(SMALL, *fiddler, "--set", "train_steps=5", "--dry-run")[1] == "a job of 5 steps\n"
    unset = ("--unset", "train_steps")
    assert run(SMALL, *unset, "--set", "train_steps=5", "--dry-run")[1] == "a job of 5 steps\n"
    assert "train_steps (int)" in run(SMALL, *unset, "--dry-run")[2]


def test_print_python_runs(run: Run, tmp_path: Path) -> None:
    out = run(SMALL, "--print", "python", "--set", "model_dir=out")[1]
    (tmp_path / "again.py").write_text(out)
    python("again.py", cwd=tmp_path)
    assert (tmp_path / "out" / "ran.txt").read_text() == "100 8\n"


def test_print_json_is_for_programs(run: Run) -> None:
    text = run(SMALL, "--print", "json", "--set", "data.files=['a', 'b']", "model.z_loss=1e999")[1]
    printed = json.loads(text, parse_constant=pytest.fail)
    assert printed["optimizer"] == "@tests.config.example.Sgd"
    assert printed["data.lengths.inputs"] == 512
    assert printed["data.files"] == ["a", "b"]
    assert (printed["model.z_loss"], printed["model_dir"]) == ("inf", None)


def test_diff_against_a_recipe_and_a_run(run: Run) -> None:
    out = run(f"{SMALL}(dropout_rate=0.5)", "--diff", SMALL)[1]
    assert out.splitlines()[1:] == [
        "model.network.dropout_rate: 0.1 → 0.5",
        "evaluation.network.dropout_rate: 0.1 → 0.5",
    ]
    run(SMALL, "--set", "model_dir=out")
    for other in ("out", "out/config.json"):
        out = run(SMALL, "--set", "model_dir=out", "--diff", other)[1]
        assert out == f"# {other} → small: the same\n"


RECIPE_FILE = """
    import dataclasses
    import fiddle as fdl
    import helper_of_mine

    @dataclasses.dataclass(frozen=True)
    class Job:
        size: int = 1
        model_dir: str | None = None

        def run(self):
            print("size", self.size)

        def describe(self):
            return "a job of mine"

    def recipe(size: int = 2) -> fdl.Config[Job]:
        return fdl.Config(Job, size=size)
"""


@pytest.fixture
def recipe_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recipe of the user's own in a file, with a module beside it; `sys.path` is put back."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("my_own_recipe", "helper_of_mine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "my_own_recipe.py").write_text(textwrap.dedent(RECIPE_FILE))
    (tmp_path / "helper_of_mine.py").write_text("")
    return "my_own_recipe.py"


def test_recipe_in_a_file(run: Run, recipe_file: str) -> None:
    assert run(f"{recipe_file}:recipe(size=4)")[1] == "size 4\n"
    assert run(f"{recipe_file}:recipe", "--set", "size=5")[1] == "size 5\n"
    assert run("my_own_recipe.recipe")[1] == "size 2\n"
    assert "Did you mean my_own_recipe.py:recipe?" in run(f"{recipe_file}:recipes")[2]
    assert "my_own_recipe.py:recipe" in run(recipe_file)[2]
    assert run("--from", f"runs/{os.listdir('runs')[0]}")[0] == 0


def test_error_in_a_recipe_file_shows_its_line(run: Run, recipe_file: str, tmp_path: Path) -> None:
    (tmp_path / "helper_of_mine.py").write_text("import no_such_module_at_all\n")
    status, _, err = run(f"{recipe_file}:recipe")
    assert status == 2
    assert "No module named 'no_such_module_at_all'" in err
    assert 'helper_of_mine.py", line 1' in err
    assert "importlib" not in err


RECIPES = {
    "big.py": """
        import fiddle as fdl
        from tests.config.example import Job, short, small

        def giant(size: int = 3, *, name: str | None = None) -> fdl.Config[Job]:
            \"\"\"A giant.

            It is large.
            \"\"\"
            return small(emb_dim=4 * size)

        def dwarf() -> "fdl.Config[Job]":
            \"\"\"A dwarf.\"\"\"
            return small()

        def helper() -> int:
            return 3

        def _hidden() -> fdl.Config[Job]:
            return small()
        """,
    "changes.py": "from tests.config.example import short as shorter",
}


@pytest.fixture
def in_project(tmp_path: Path) -> Project:
    """Runs a command line in a project with recipes of its own."""
    (tmp_path / "recipes").mkdir()
    for name, text in RECIPES.items():
        (tmp_path / "recipes" / name).write_text(textwrap.dedent(text))

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return python("-m", "mtf.run", *arguments, cwd=tmp_path, status=None)

    return call


def test_list(in_project: Project) -> None:
    """The project's recipes stand beside mtf's, each in one line."""
    recipes, _, fiddlers = in_project("--list").stdout.partition("\n\nFiddlers, for --apply:\n")
    listed = dict(line.split(maxsplit=1) for line in recipes.splitlines())
    assert listed["recipes.big.giant"] == "A giant"
    assert listed["recipes.big.dwarf"] == "A dwarf"
    lines = [*recipes.splitlines(), *fiddlers.splitlines()]
    assert len({len(line) - len(line.split(maxsplit=1)[1]) for line in lines}) == 1
    assert len(listed) == len(recipes.splitlines())
    trains = "Trains a small T5 1.1 from scratch on English text, in minutes on a laptop"
    assert listed["recipes.pretrain_text"] == trains
    applied = dict(line.split(maxsplit=1) for line in fiddlers.splitlines())
    assert applied["no_eval"] == "Turns off evaluation during training"
    assert "builders" not in applied


def test_recipes_of_the_project(in_project: Project) -> None:
    assert "emb_dim = 64" in in_project("recipes.big.giant(size=16)", "--print", "all").stdout
    wrong = in_project("giant")
    assert wrong.returncode == 2
    assert "Did you mean recipes.big.giant?" in wrong.stderr
    assert "Did you mean recipes.big.dwarf" in in_project("recipes.big.dwraf").stderr
    short = in_project(
        "recipes.big.giant", "--apply", "recipes.changes.shorter(steps=6)", "--dry-run"
    )
    assert "6 steps" in short.stdout


def test_traceback_of_a_failing_run(in_project: Project) -> None:
    done = in_project("recipes.big.giant(size=16)", "--set", "fail=inside")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "the loss is lost" in done.stderr


def test_mtf_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"mtf {mtf.__version__}\n"
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("run", "convert"))
    assert cli.main(["rnu"]) == 2
    assert "Did you mean run?" in capsys.readouterr().err
    assert cli.main([]) == 2
    assert cli.main(["run", SMALL, "--dry-run"]) == 0
    assert capsys.readouterr().out == "a job of 100 steps\n"


def _assert_quick(program: list[str], seconds: float) -> str:
    """Asserts how much CPU time a process takes, in one of three tries; returns its stdout."""
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = python(*program)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if spent < seconds:
            return done.stdout
    raise AssertionError(f"{program} took {spent} s")  # the machine may be busy once or twice


@pytest.mark.parametrize("command", [["mtf.run", "--help"], ["mtf", "--help"]])
def test_help_is_quick(command: list[str]) -> None:
    _assert_quick(["-m", *command], 0.3)


COMMANDS = [
    (["--list"], 0),
    (["recipes.t0pp_xxl", "--help", "trainer"], 0),
    ([SMALL, "--print", "python"], 0),
    ([SMALL, "--set", "dropout_rate=0"], 2),
]


@pytest.mark.parametrize(("arguments", "status"), COMMANDS)
def test_showing_and_refusing_is_quick_and_imports_no_framework(
    arguments: list[str], status: int
) -> None:
    program = textwrap.dedent(
        f"""
        import sys
        from mtf.cli.run import main
        status = main({arguments!r})
        heavy = {{"jax", "tensorflow", "flax", "optax", "orbax", "numpy", "torch", "concurrent"}}
        print(sorted(heavy & set(sys.modules)), status)
        """
    )
    assert _assert_quick(["-c", program], 1.0).splitlines()[-1] == f"[] {status}"
