"""The same recipe trained with mtf and with T5X: the same losses, also after a resume."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtf.cli.run import main
from tests import small
from tests.t5x import T5X_MISSING

pytestmark = pytest.mark.skipif(T5X_MISSING, reason="T5X is not installed (docs/t5x.md)")

SETTINGS = {
    # The engines draw different random numbers for dropout.
    "model.network.dropout_rate": 0.0,
    "trainer.eval_period": 5,
    "trainer.eval_steps": 2,
    "checkpoint.save.period": 5,
}
# One checkpoint to start from, since the engines draw different initial parameters.
START = "@mtf.checkpoints.settings.RestoreCheckpointConfig(path='{}', mode='specific')"


def losses_of_mtf(run_dir: Path, kind: str) -> dict[int, float]:
    return {int(line["step"]): line["loss"] for line in small.read_metrics(run_dir, kind)}


def losses_of_t5x(run_dir: Path, kind: str) -> dict[int, float]:
    pattern = rf"\[(\d+)\] collection={re.escape(kind)} .*\bloss=([\d.e+-]+)"
    found = re.findall(pattern, (run_dir / "t5x.log").read_text())
    return {int(step): float(loss) for step, loss in found}


def run(run_dir: Path, text: Path, *more: str, **settings: Any) -> None:
    values = {**SETTINGS, **settings, "model_dir": run_dir}
    assert main([*small.arguments(text, **values), *more]) == 0


def test_five_steps_and_a_resume_have_the_same_losses(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, first = small.write_text(tmp_path), tmp_path / "first"
    run(first, text, train_steps=2)
    start = START.format(first / "checkpoints" / "checkpoint_2")
    ours, theirs = tmp_path / "mtf", tmp_path / "t5x"
    for steps in (7, 9):  # T5X resumes at step 7, with the eighth batch.
        settings = {"train_steps": steps, "checkpoint.restore": start}
        run(ours, text, **settings)
        capfd.readouterr()
        run(theirs, text, "--engine", "t5x", **settings)
    shown = capfd.readouterr()
    assert re.search(r"^step 9  train  .*loss \d", shown.out, re.MULTILINE)
    assert "tensorflow" not in shown.err and "WARNING" not in shown.err
    for kind in ("train", "training_eval/held_out"):
        expected, found = losses_of_mtf(ours, kind), losses_of_t5x(theirs, kind)
        common = sorted(expected.keys() & found.keys())
        assert common[-1] == 9 and (len(common) == 7 or kind != "train")
        np.testing.assert_allclose(
            [found[step] for step in common], [expected[step] for step in common], rtol=1e-5
        )
    stored = json.loads((theirs / "t5x_config.json").read_text())
    assert stored
    assert (theirs / "config.json").is_file()


def test_dropped_optimizer_states_are_initialized(tmp_path: Path) -> None:
    text, first = small.write_text(tmp_path), tmp_path / "first"
    run(first, text, train_steps=2)
    start = START.format(first / "checkpoints" / "checkpoint_2").removesuffix(")")
    settings = {"trainer.eval_period": None, "train_steps": 4}
    settings["checkpoint.restore"] = f"{start}, assignment_map=(('state/param_states/.*', None),))"
    run(tmp_path / "mtf", text, **settings)
    run(tmp_path / "t5x", text, "--engine", "t5x", **settings)
    expected, found = (
        losses_of_mtf(tmp_path / "mtf", "train"),
        losses_of_t5x(tmp_path / "t5x", "train"),
    )
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_run_directory_belongs_to_one_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, run_dir = small.write_text(tmp_path), tmp_path / "run"
    run(run_dir, text, train_steps=2)
    arguments = ["--from", str(run_dir), "--set", "train_steps=4", "--engine", "t5x"]
    assert main(arguments) == 2
    assert "was started with --engine mtf" in capsys.readouterr().err


def test_decoded_texts_in_training_have_the_same_metrics(tmp_path: Path) -> None:
    text, first = small.write_text(tmp_path), tmp_path / "first"
    run(first, text, train_steps=2)
    settings = {
        "train_steps": 4,
        "checkpoint.restore": START.format(first / "checkpoints" / "checkpoint_2"),
        "evaluator": "@mtf.evaluation.InferEvalConfig(period=5, num_examples=5, "
        "metrics=('accuracy', 'edit_distance'))",
    }
    run(tmp_path / "mtf", text, **settings)
    run(tmp_path / "t5x", text, "--engine", "t5x", **settings)
    folder = tmp_path / "mtf" / "inference_eval" / "held_out"
    ours = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    file = tmp_path / "t5x" / "inference_eval" / "held_out-metrics.jsonl"
    theirs = json.loads(file.read_text().splitlines()[-1])
    scores = theirs.keys() - {"step"}
    assert scores and theirs["step"] == ours["step"] == 4
    assert {name: theirs[name] for name in scores} == {name: ours[name] for name in scores}


def test_the_printed_code_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import runpy

    text = small.write_text(tmp_path)
    values = {**SETTINGS, "train_steps": 2, "model_dir": tmp_path / "run"}
    assert main([*small.arguments(text, **values), "--print", "python", "--engine", "t5x"]) == 0
    code = tmp_path / "printed.py"
    code.write_text(capsys.readouterr().out)
    runpy.run_path(str(code), run_name="__main__")
    assert (tmp_path / "run" / "checkpoint_2").is_dir()
