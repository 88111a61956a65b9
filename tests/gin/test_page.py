"""docs/t5x.md has all gin bindings that are translated, and its commands are true."""

from __future__ import annotations

import shlex
from pathlib import Path

from mtf.cli.gin.mesh import MESH
from mtf.cli.gin.t5x_table import T5X
from mtf.cli.gin.walking import _types
from mtf.jobs import Evaluate, Infer, Train
from tests.gin.helpers import Gin
from tests.gin.regenerate import GROUPS, PAGE, SHOWN, page


def test_the_tables_are_those_of_today() -> None:
    text = PAGE.read_text()
    assert text == page(text), "run python -m tests.gin.regenerate"


def test_all_sections_are_on_the_page() -> None:
    shown = {name for names in GROUPS.values() for name in names}
    # Models of jobs have the rows of those in training; loggers have none.
    assert set(T5X) - shown == {"decoding_model", "logger", "factor_rules"}


def test_all_fields_on_the_page_exist() -> None:
    paths = {row.path for section in (*T5X.values(), *MESH.values()) for row in section.rows}
    of_jobs = {path for path in paths if path is not None and not path.startswith("mesh.")}
    shown = {each for path in of_jobs for each in SHOWN.get(path, (path,))}
    jobs = (Train, Evaluate, Infer)
    unknown = [path for path in shown if not any(any(_types(job, path.split("."))) for job in jobs)]
    assert unknown == []


def test_the_commands_of_the_page(gin: Gin, t5x: Path, mesh: Path, tmp_path: Path) -> None:
    text = PAGE.read_text().replace("\\\n", " ")
    commands = [
        shlex.split(line.removeprefix("python -m mtf gin "))
        for line in text.splitlines()
        if line.startswith("python -m mtf gin ")
    ]
    assert len(commands) == 3
    (tmp_path / "my.gin").write_text(
        "include 't5x/examples/t5/t5_1_1/small.gin'\ninclude 't5x/configs/runs/pretrain.gin'\n"
        "MIXTURE_OR_TASK_NAME = 't0_train'\nTASK_FEATURE_LENGTHS = {'inputs': 8, 'targets': 8}\n"
        "TRAIN_STEPS = 5\nDROPOUT_RATE = 0.0\n"
    )
    operative = (mesh / "t5.1.1.lm100k.base.gin").read_text()
    (tmp_path / "operative_config.gin").write_text(operative)
    for command in commands:
        status, _, err = gin(*command, f"--gin_search_paths={t5x},{mesh}")
        assert status == 0, err
    assert (tmp_path / "my_recipe.py").exists()
