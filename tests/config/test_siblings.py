"""mtf's packages `recipes` and `conversion` beside modules of the user's that have these names."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtf import config as config_lib
from mtf import siblings
from mtf.config import resolve
from mtf.errors import UserError
from mtf.run import main

ROOT = Path(__file__).resolve().parents[2]

RECIPE = """
    import dataclasses
    import fiddle as fdl
    from tests.config.example import Job, small

    @dataclasses.dataclass(frozen=True)
    class {cls}:
        size: int = 1
        model_dir: str | None = None

        def run(self):
            print("{cls}", self.size)

        def describe(self):
            return "{cls}"

    def {name}(size: int = 1) -> fdl.Config[{cls}]:
        \"\"\"Mine.\"\"\"
        return fdl.Config({cls}, size=size)
    """


def _write(file: Path, name: str, cls: str = "Mine") -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(textwrap.dedent(RECIPE).format(name=name, cls=cls))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, first on `sys.path`, as under `python -m`; its modules are dropped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [n for n in sys.modules if n.partition(".")[0] in siblings.PACKAGES]:
        if siblings.is_ours(getattr(sys.modules[name], "__file__", None)):
            monkeypatch.setitem(sys.modules, name, sys.modules[name])
        else:
            monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in siblings.PACKAGES:
            del sys.modules[name]


def _names() -> list[str]:
    return [listing.name for listing in config_lib.list_recipes()]


@pytest.mark.parametrize("file", ["recipes.py", "recipes/__init__.py"])
def test_a_recipe_of_ones_own_stands_beside_the_installed_ones(
    project: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(project / file, "mine")
    assert _names().count("recipes.mine") == 1
    assert {"recipes.quickstart", "recipes.t0pp_xxl"} <= set(_names())
    for name in ("recipes.mine(size=3)", f"{file}:mine(size=3)", f"./{file}:mine(size=3)"):
        assert main([name, "--set", "model_dir=run"]) == 0
        assert capsys.readouterr().out == "Mine 3\n"
    assert main(["--from", "run"]) == 0
    assert capsys.readouterr().out == "Mine 3\n"
    assert main(["recipes.quickstart", "--print", "flat"]) == 0


def test_a_module_of_ones_own_without_an_init(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(project / "recipes" / "more.py", "mine")
    assert "recipes.more.mine" in _names()
    assert main(["recipes.more.mine", "--set", "model_dir=run"]) == 0
    assert main(["recipes/more.py:mine", "--set", "model_dir=run"]) == 0
    assert main(["--from", "run"]) == 0
    assert capsys.readouterr().out == "Mine 1\n" * 3


def test_what_a_module_of_mtf_lacks_is_looked_for_in_yours(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(project / "recipes" / "t5.py", "mine")
    assert "recipes.t5.mine" in _names()
    assert "recipes.t5_1_1_finetune" in _names()
    assert main(["recipes.t5.mine", "--set", "model_dir=run"]) == 0
    assert main(["--from", "run"]) == 0
    assert capsys.readouterr().out == "Mine 1\n" * 2
    assert resolve("recipes.t5.t5_1_1_small_c4").train_steps == 100_000


def test_a_name_in_two_places_is_refused_with_both(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(project / "recipes.py", "quickstart")
    assert "./recipes.py:quickstart" in _names()
    with pytest.raises(UserError, match="is defined twice") as caught:
        resolve("recipes.quickstart")
    installed = ROOT / "recipes" / "start.py"
    assert "./recipes.py:quickstart" in str(caught.value)
    assert f"{installed}:quickstart" in str(caught.value)
    assert main(["./recipes.py:quickstart", "--dry-run"]) == 0
    assert capsys.readouterr().out == "Mine\n"
    assert resolve(f"{installed}:quickstart").train_steps == 1000
    assert resolve("recipes.start.quickstart").train_steps == 1000


def test_a_broken_file_does_not_keep_the_installed_recipes_from_running(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "recipes.py").write_text("def mine(:\n")
    assert resolve("recipes.quickstart").train_steps == 1000
    assert main(["recipes.mine"]) == 2
    message = capsys.readouterr().err
    assert "SyntaxError" in message
    assert 'recipes.py", line 1' in message
    assert "siblings" not in message


def test_conversion_of_ones_own_is_not_in_the_way(tmp_path: Path) -> None:
    """A process of its own: `python -m` puts the working directory first."""
    (tmp_path / "conversion.py").write_text("def to_miles(km):\n    return km / 1.609344\n")
    code = """
        import mtf.config, mtf.convert
        import conversion
        from conversion import open_checkpoint, mapping, to_miles
        assert to_miles(1.609344) == 1
        assert mapping.__name__ == "conversion.mapping"
        assert mtf.convert.main(["nowhere", "out", "--to", "hf"]) == 2
        """
    (tmp_path / "script.py").write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "error: nowhere does not exist; expected a checkpoint.\n"


def test_recipes_may_be_imported_before_mtf(tmp_path: Path) -> None:
    """As in a sorted list of imports."""
    _write(tmp_path / "more" / "recipes.py", "mine")
    code = """
        import recipes, sys
        sys.path.append("more")
        assert recipes.mine().size == 1
        assert recipes.quickstart().train_steps == 1000
        """
    (tmp_path / "script.py").write_text(textwrap.dedent(code))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=environment, check=True)


def test_another_conversion_imported_before_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = type(sys)("conversion")
    other.__file__ = str(tmp_path / "conversion.py")
    monkeypatch.setitem(sys.modules, "conversion", other)
    with pytest.raises(ImportError, match=rf"{other.__file__}\. Import mtf first, or rename"):
        siblings.install()
