"""The user's modules named `recipes` and `conversion`, which hide mtf's packages."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from mtf.base.environment import resume_command
from tests.small import python

RECIPE = """
    import dataclasses
    import fiddle as fdl

    @dataclasses.dataclass(frozen=True)
    class Mine:
        size: int = 1
        model_dir: str | None = None

        def run(self):
            print("Mine", self.size)

        def describe(self):
            return "Mine"

    def mine(size: int = 1) -> fdl.Config[Mine]:
        \"\"\"Mine.\"\"\"
        return fdl.Config(Mine, size=size)
    """


def _run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Returns the exit status, stdout and stderr of a command of mtf in a folder."""
    done = python("-m", *arguments, cwd=folder, status=None)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("file", "recipe"), [("recipes.py", "recipes.mine"), ("recipes/more.py", "recipes.more.mine")]
)
def test_recipes_of_the_user(tmp_path: Path, file: str, recipe: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(textwrap.dedent(RECIPE))
    changes = ("--set", "size=3", "model_dir=run")
    assert _run(tmp_path, "mtf.run", recipe, *changes) == (0, "Mine 3\n", "")
    stored = tmp_path / "run" / "config.json"
    if file == "recipes.py":  # Older versions stored another name.
        stored.write_text(stored.read_text().replace('"recipes"', '"recipes._own"'))
    assert _run(tmp_path, "mtf.run", recipe, *changes) == (0, "Mine 3\n", "")
    assert resume_command(tmp_path / "run").endswith(f"run --trust {tmp_path / 'run'}")
    status, _, err = _run(tmp_path, "mtf.run", "--from", "run")
    assert (status, "--trust run" in err) == (2, True)
    assert _run(tmp_path, "mtf.run", "--from", "run", "--trust", "run") == (0, "Mine 3\n", "")
    status, out, err = _run(tmp_path, "mtf.run", "recipes.pretrain_text", "--print", "flat")
    if file == "recipes.py":
        assert (status, out) == (2, "")
        assert f"{tmp_path / file} hides mtf's package recipes; rename the file" in err
    else:
        assert (status, err) == (0, "")


def test_conversion_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "conversion.py").write_text("def to_miles(km):\n    return km / 1.609344\n")
    status, out, err = _run(tmp_path, "mtf.convert", "nowhere", "out", "--to", "hf")
    said = f"error: {tmp_path / 'conversion.py'} hides mtf's package conversion; rename the file.\n"
    assert (status, out, err) == (2, "", said)


def test_importing_mtf_changes_nothing() -> None:
    code = (
        "import sys, signal; a = (list(sys.meta_path), signal.getsignal(2)); import mtf; "
        "assert a == (list(sys.meta_path), signal.getsignal(2))"
    )
    python("-c", code)
