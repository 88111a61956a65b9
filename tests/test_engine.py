"""`--engine t5x` without T5X: one message, and nothing is written."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import recipes
from mtf.base.errors import UserError
from mtf.cli.run import main
from mtf.t5x import lowering

REFUSED = "--engine t5x needs T5X, which is not installed"


@pytest.mark.skipif(importlib.util.find_spec("t5x") is not None, reason="T5X is installed")
@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--print", "python"]])
def test_without_t5x_the_message_has_the_command_that_installs_it(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    arguments = ["recipes.quickstart", "--set", f"model_dir={run_dir}", "--engine", "t5x"]
    assert main([*arguments, *more]) == 2
    shown = capsys.readouterr().err
    assert REFUSED in shown and "pip install" in shown and "cc342d4" in shown
    assert not run_dir.exists()


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
