"""The same recipe trained with mtf and with T5X: the same losses, also after a resume."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtf import convert, status
from mtf.run import main
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

ADAMW = (
    "@mtf.training.AdamWConfig(weight_decay_rate=0.1, "
    "learning_rate=@mtf.builders.schedule.constant(learning_rate=0.01))"
)


def losses_of_mtf(run_dir: Path, kind: str) -> dict[int, float]:
    lines = map(json.loads, (run_dir / kind / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines}


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


def test_a_signal_saves_and_the_run_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, first = small.write_text(tmp_path), tmp_path / "first"
    run(first, text, train_steps=2)
    settings: dict[str, Any] = {
        "trainer.eval_period": None,
        "trainer.stats_period": 5,
        "checkpoint.save.period": 100_000,
        "checkpoint.restore": START.format(first / "checkpoints" / "checkpoint_2"),
    }
    ours, theirs = tmp_path / "mtf", tmp_path / "t5x"

    def send_signal() -> None:
        while not (theirs / "train" / "metrics.jsonl").is_file():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send_signal, daemon=True).start()
    run(theirs, text, "--engine", "t5x", train_steps=100_000, **settings)
    found = status.read_status(theirs)
    assert (found.state, found.reason) == ("stopped", "SIGTERM")
    assert found.step == found.checkpoint_step and found.step % 5 == 2
    assert f"SIGTERM: saved step {found.step} in {theirs}" in capsys.readouterr().out
    assert f"mtf.run --from {theirs} --engine t5x" in status.as_text(found)

    last = found.step + 4
    settings |= {"train_steps": last, "trainer.stats_period": 1}
    run(theirs, text, "--engine", "t5x", **settings)
    run(ours, text, **settings)
    expected, resumed = losses_of_mtf(ours, "train"), losses_of_mtf(theirs, "train")
    assert [*resumed] == [*range(7, found.step + 1, 5), *range(found.step + 1, last + 1)]
    for step in range(found.step + 1, last + 1):
        assert resumed[step] == pytest.approx(expected[step], rel=1e-5)
    end, mtf_end = status.read_status(theirs), status.read_status(ours)
    assert (end.state, end.step, end.checkpoint_step) == ("finished", last, last)
    assert end.loss == pytest.approx(mtf_end.loss, rel=1e-5)

    # The export has the settings of the run.
    capsys.readouterr()
    assert convert.main([str(theirs), str(tmp_path / "hf"), "--to", "hf"]) == 0
    shown = capsys.readouterr()
    assert "assumed" not in shown.out + shown.err
    assert (tmp_path / "hf" / "tokenizer_config.json").is_file()


def test_adamw_continues_checkpoints_of_both_engines(tmp_path: Path) -> None:
    text = small.write_text(tmp_path)
    settings = {"optimizer": ADAMW, "trainer.eval_period": None, "train_steps": 3}
    run(tmp_path / "first", text, **settings)

    def both(start: Path, steps: int) -> tuple[Path, Path]:
        runs = tmp_path / f"mtf-{steps}", tmp_path / f"t5x-{steps}"
        values = {**settings, "train_steps": steps, "checkpoint.restore": START.format(start)}
        run(runs[0], text, **values)
        run(runs[1], text, "--engine", "t5x", **values)
        expected, found = losses_of_mtf(runs[0], "train"), losses_of_t5x(runs[1], "train")
        assert [*found] == [*expected] == [*range(steps - 2, steps + 1)]
        np.testing.assert_allclose([*found.values()], [*expected.values()], rtol=1e-5)
        return runs

    _, theirs = both(tmp_path / "first" / "checkpoints" / "checkpoint_3", 6)
    both(theirs / "checkpoint_6", 9)


def test_adamw_starts_from_a_checkpoint_of_adafactor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, first = small.write_text(tmp_path), tmp_path / "first"
    run(first, text, train_steps=2)
    values = {
        **SETTINGS,
        "optimizer": ADAMW,
        "trainer.eval_period": None,
        "train_steps": 4,
    }

    def arguments(name: str, restore: str) -> list[str]:
        path = first / "checkpoints" / "checkpoint_2"
        start = START.format(path).removesuffix(")") + f", {restore})"
        settings = {**values, "checkpoint.restore": start, "model_dir": tmp_path / name}
        return small.arguments(text, **settings)

    t5x = ["--engine", "t5x"]
    assert main([*arguments("refused", "fallback_to_scratch=False"), *t5x]) == 2
    assert "/mu: missing from the checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "refused").exists()
    dropped = "assignment_map=(('state/param_states/.*', None),)"
    assert main(arguments("mtf", dropped)) == 0
    expected = [*losses_of_mtf(tmp_path / "mtf", "train").values()]
    for name, restore in (("dropped", dropped), ("missing", "fallback_to_scratch=True")):
        assert main([*arguments(name, restore), *t5x]) == 0
        found = [*losses_of_t5x(tmp_path / name, "train").values()]
        assert found == pytest.approx(expected, rel=1e-5)


def test_a_run_directory_belongs_to_one_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, run_dir = small.write_text(tmp_path), tmp_path / "run"
    run(run_dir, text, train_steps=2)
    arguments = ["--from", str(run_dir), "--set", "train_steps=4", "--engine", "t5x"]
    assert main(arguments) == 2
    assert "was started with --engine mtf" in capsys.readouterr().err


def test_ranked_tasks_have_the_same_metrics(tmp_path: Path) -> None:
    text, run_dir = small.write_text(tmp_path), tmp_path / "run"
    run(run_dir, text, train_steps=2)
    letters = "abcdefghijkl"
    lines = [
        {"inputs": letters[i:] + letters[:i], "choices": ["yes", "not at all"], "label": i % 2}
        for i in range(12)
    ]
    files = tmp_path / "ranked.jsonl"
    files.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = (
        f"@mtf.evaluation.settings.RankFilesConfig(files='{files}', "
        "task_feature_lengths={'inputs': 16, 'targets': 12})"
    )
    command = ["recipes.evaluate", "--set", f"checkpoint={run_dir}", f"data={data}"]
    assert main([*command, f"output_dir={tmp_path / 'mtf'}"]) == 0
    assert main([*command, f"output_dir={tmp_path / 't5x'}", "--engine", "t5x"]) == 0
    ours = json.loads((tmp_path / "mtf" / "results.json").read_text())["tasks"]["ranked"]
    theirs = json.loads((tmp_path / "t5x" / "inference_eval" / "ranked-metrics.jsonl").read_text())
    assert theirs.pop("step") == 2
    assert theirs == pytest.approx(ours["metrics"], rel=1e-5)


def test_inference_has_the_same_scores(tmp_path: Path) -> None:
    text, run_dir = small.write_text(tmp_path), tmp_path / "run"
    run(run_dir, text, train_steps=2)
    (tmp_path / "in.tsv").write_text("hello there\tgeneral\nabc def\tghi\nxyz\tuvw\n")
    command = ["recipes.infer", "--set", f"checkpoint={run_dir}", f"files={tmp_path / 'in.tsv'}"]
    lengths = ["task_feature_lengths.inputs=32", "task_feature_lengths.targets=16"]
    command += [*lengths, "decoding.max_length=16", "mode=score"]
    assert main([*command, f"output_dir={tmp_path / 'mtf'}"]) == 0
    assert main([*command, f"output_dir={tmp_path / 't5x'}", "--engine", "t5x"]) == 0
    found = [
        [json.loads(line) for line in (tmp_path / engine / name).read_text().splitlines()]
        for engine in ("mtf", "t5x")
        for name in ["in-score.jsonl-00000-of-00001"]
    ]
    ours, theirs = ([(line["inputs"], line["score"]) for line in lines] for lines in found)
    assert [inputs for inputs, _ in theirs] == [inputs for inputs, _ in ours]
    assert [score for _, score in theirs] == pytest.approx([s for _, s in ours], rel=1e-5)


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
