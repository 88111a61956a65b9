"""A run on a custom task is opened without the user's module, also from another directory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import mtf
from mtf.config import allowed
from mtf.data.tasks import registry
from tests import small

MODULE = """
from mtf.data import tasks

tasks.register(
    "spelled",
    tasks.FileSource({"train": "words.txt"}),
    lambda row: {"inputs": row["text"], "targets": row["text"].upper()},
    inputs_add_eos=False,
)
"""


@pytest.mark.slow
def test_a_run_on_a_custom_task_is_loaded_and_resumed_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", type(registry._REGISTRY)())
    (tmp_path / "custom_spelled.py").write_text(MODULE)
    (tmp_path / "words.txt").write_text("\n".join(f"word {n}" for n in range(50)))
    model = {name: value for name, value in small.SETTINGS.items() if name.startswith("model.")}
    data = (
        "data=@mtf.data.TaskMixtureConfig(mixture_or_task_name=spelled, module=custom_spelled, "
        "loader=memory, vocabulary=@mtf.data.ByteVocabulary, "
        "task_feature_lengths={'inputs': 16, 'targets': 16})"
    )
    settings = {**model, "train_steps": 2, "batch_size": 2, "num_samples": 0, "model_dir": "run"}
    settings |= {"trainer.eval_period": None, "trainer.stats_period": 1}
    arguments = [f"{name}={value}" for name, value in settings.items()]
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    small.run(["recipes.pretrain_text", "--set", data, *arguments], tmp_path)

    # Loaded from another directory, as in a process that has not imported the module.
    def forget() -> None:
        sys.modules.pop("custom_spelled")
        monkeypatch.setattr(registry, "_REGISTRY", type(registry._REGISTRY)())
        monkeypatch.setattr(allowed, "_named", set())
        monkeypatch.setattr(allowed, "_own_configs", [])

    forget()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    model_of_run = mtf.load(tmp_path / "run")
    assert "custom_spelled" not in sys.modules
    assert not model_of_run.inputs_add_eos

    # Resumed from elsewhere: the module must be on the Python path, and the file must be there.
    resume = ["--from", "../run", "--set", "train_steps=3"]
    output = small.run(resume, Path.cwd(), status=2)
    assert "../run names custom_spelled" in output
    assert "add --trust ../run to the command" in output
    resume += ["--trust", "../run"]
    output = small.run(resume, Path.cwd(), status=2)
    assert "there is no module custom_spelled" in output
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    output = small.run(resume, Path.cwd(), status=2)
    assert "words.txt does not exist in" in output
