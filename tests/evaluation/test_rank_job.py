"""The evaluation job from its command line: files, tables, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recipes
from mtf import config as config_lib
from mtf.base.errors import UserError
from mtf.cli import cache as cache
from mtf.cli import status
from mtf.cli.convert import command as convert
from mtf.cli.run import main
from mtf.data.settings import TaskMixtureConfig
from mtf.data.text.vocabularies import ByteVocabulary, SentencePieceVocabulary
from mtf.evaluation import tasks as tasks_lib
from mtf.evaluation.settings import RankFilesConfig
from mtf.evaluation.task_data import RankData, RankExample
from mtf.evaluation.tasks import EvaluationTask
from mtf.inference.predictor import Predictor
from mtf.jobs import Evaluate
from mtf.jobs.evaluate import run as run_of
from tests.conversion import writers
from tests.inference import models

ROWS = [
    {"inputs": "is it red", "choices": ["yes", "no"], "label": 0},
    {"inputs": "is it blue", "choices": ["yes", "no", "may be"], "label": 2},
    {"inputs": "x" * 90, "choices": ["yes"], "label": 0},
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writers.write_t5x(tmp_path_factory.mktemp("model"), writers.random_parameters(seed=1))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def job(checkpoint: Path | str | None, file: Path, out: Path | None, **settings: Any) -> Evaluate:
    data = RankFilesConfig(
        files=str(file),
        vocabulary=ByteVocabulary(),
        task_feature_lengths={"inputs": 64, "targets": 16},
    )
    where = None if checkpoint is None else str(checkpoint)
    return Evaluate(where, data, output_dir=str(out), **settings)


def test_the_command_line_evaluates_a_file(
    checkpoint: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    byte = "@mtf.data.ByteVocabulary"
    arguments = [f"recipes.t0_eval(files={str(file)!r})", "--set", f"checkpoint={checkpoint}"]
    arguments += [f"data.vocabulary={byte}", "data.task_feature_lengths.inputs=64"]
    arguments += ["partitioner.num_partitions=1", "batch_size=8"]
    assert main([*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "1 of 1 tasks have data" in shown and "parameters" in shown
    assert main([*arguments, f"output_dir={out}"]) == 0
    shown = capsys.readouterr().out
    assert "mine" in shown and "1 of 3 examples: inputs or choices were trunc" in shown

    assert {path.name for path in out.iterdir()} == {
        *("results.json", "results.md", "predictions.jsonl", "accuracy.png"),
        *("environment.json", "tensorboard", "end.json", "processes"),
    }
    assert status.main([str(out)]) == 0
    shown = capsys.readouterr().out
    assert "state       finished" in shown and "step" not in shown
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [1, 2, 3]
    assert [line["num_tokens"] for line in lines] == [[4, 3], [4, 3, 7], [4]]
    assert [line["truncated"] for line in lines] == [False, False, True]
    right = [line["correct"][int(np.argmax(line["log_likelihoods"]))] for line in lines]
    results = json.loads((out / "results.json").read_text())
    task = results["tasks"]["mine"]
    assert task["metrics"]["accuracy"] == pytest.approx(100 * np.mean(right))
    assert task["num_truncated"] == 1 and results["step"] == 7
    assert (out / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert list((out / "tensorboard").glob("events.out.tfevents.*"))

    assert main([*arguments, f"output_dir={out}"]) == 2
    assert "never overwritten" in capsys.readouterr().err


def test_what_is_refused_writes_nothing(checkpoint: Path, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"^checkpoint is not set"):
        job(None, file, out).run()
    with pytest.raises(UserError, match="There is no model at"):
        job(tmp_path / "none", file, out).run()
    with pytest.raises(UserError, match=r"mine\.jsonl is not a writable directory"):
        job(checkpoint, file, file / "out").run()
    data = RankFilesConfig(files=str(file), vocabulary=ByteVocabulary(extra_ids=300))
    with pytest.raises(UserError, match=r"559 ids.*384 rows"):
        Evaluate(str(checkpoint), data, output_dir=str(out)).run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.jsonl"]


def test_scores_that_are_no_numbers_stop_and_leave_nothing(file: Path, tmp_path: Path) -> None:
    parameters = writers.random_parameters(seed=1)
    parameters["token_embedder/embedding"][ord("b") + 3] = np.nan  # only the second row has a b
    broken = writers.write_t5x(tmp_path / "model", parameters)
    with pytest.raises(UserError, match=r"^task mine, row 2 of its data: a log-likelihood is NaN"):
        job(broken, file, tmp_path / "out").run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.jsonl", "model"]


def test_prompts_without_data_or_with_failures_do_not_count_and_are_named(
    checkpoint: Path,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = [RankExample(0, [5, 6], [[7, 1], [8, 1]], [True, False])]
    tasks = (
        EvaluationTask("d_one", "d", "one", "rank", lambda: RankData(good)),
        EvaluationTask("d_two", "d", "two", "rank", lambda: RankData(good, 0, {1: "no column"})),
        EvaluationTask("d_three", "d", "three", "rank", lambda: RankData([], 2)),
        EvaluationTask("e_four", "e", "four", "rank", None, "ask for it at https://example.org"),
    )
    monkeypatch.setattr("mtf.jobs.evaluate.run.evaluation_tasks", lambda data, download: tasks)
    job(checkpoint, file, tmp_path / "out").run()
    shown = capsys.readouterr().out
    for text in (
        "1 of 3",
        "0 of 1",
        "Mean over 1 of 2 datasets (1 of 4 prompts)",
        "d_two: not included in the mean: 1 examples failed; the first is row 1: no column",
        "d_three: not included in the mean: the prompt does not apply to any row",
        "e: 1 of 1 prompts have no data: ask for it at https://example.org",
    ):
        assert text in shown
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    found = results["tasks"]["d_one"]["metrics"]["accuracy"]
    assert results["datasets"]["d"]["accuracy"]["mean"] == found
    assert results["datasets"]["e"]["accuracy"] is None
    assert "https://example.org" in (tmp_path / "out" / "results.md").read_text()


def test_results_are_not_complete_before_the_events_are_written(
    checkpoint: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mtf.evaluation.report.write_events", interrupted)
        with pytest.raises(KeyboardInterrupt):
            job(checkpoint, file, tmp_path / "out").run()
    assert not (tmp_path / "out" / "results.json").exists()
    job(checkpoint, file, tmp_path / "out").run()
    assert (tmp_path / "out" / "results.json").exists()
    assert list((tmp_path / "out" / "tensorboard").iterdir())


@pytest.mark.slow
def test_an_interrupted_evaluation_continues_after_the_last_complete_task(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    files, calls, score = tmp_path / "*.jsonl", [], Predictor.log_likelihoods

    def interrupted(self: Predictor, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return score(self, *args, **kwargs)

    monkeypatch.setattr(Predictor, "log_likelihoods", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job(checkpoint, files, tmp_path / "out").run()
    assert not (tmp_path / "out" / "results.json").exists()
    resumed = job(checkpoint, files, tmp_path / "out").run()
    assert len(calls) == 3, "only the second task is scored again"
    whole = job(checkpoint, files, tmp_path / "whole").run()
    assert resumed.tasks == whole.tasks
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    predictions = [
        (tmp_path / name / "predictions.jsonl").read_bytes() for name in ("out", "whole")
    ]
    assert predictions[0] == predictions[1]

    # Predictions of other examples are not used.
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        job(checkpoint, files, tmp_path / "again").run()
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(UserError, match=r"with other settings: .*examples was 3 and is now 1"):
        job(checkpoint, files, tmp_path / "again").run()


@pytest.fixture
def t0_eval(
    prompts: Path, datasets_dir: Path, t5_model: Path, monkeypatch: pytest.MonkeyPatch
) -> TaskMixtureConfig:
    """T0's evaluation, for which the mirror has copa, cb, rte and winogrande_xl."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return TaskMixtureConfig(
        mixture_or_task_name="t0_eval_score_eval",
        vocabulary=SentencePieceVocabulary(str(t5_model)),
        task_feature_lengths={"inputs": 1024, "targets": 256},
        data_dir=str(datasets_dir),
        templates=str(prompts),
        allow_missing_tasks=True,
    )


@pytest.mark.slow
def test_a_cache_has_the_same_tasks_and_examples(
    tmp_path: Path, t0_eval: TaskMixtureConfig
) -> None:
    live = tasks_lib.evaluation_tasks(t0_eval)
    arguments = ["t0_eval_score_eval", "--output", str(tmp_path), "--skip-missing"]
    arguments += ["--data-dir", str(t0_eval.data_dir), "--templates", str(t0_eval.templates)]
    arguments += ["--vocabulary", t0_eval.vocabulary.path, "--num-workers", "1"]
    assert cache.main(arguments) == 0
    cached = tasks_lib.evaluation_tasks(dataclasses.replace(t0_eval, cache_dir=str(tmp_path)))

    def about(tasks: Sequence[EvaluationTask]) -> list[tuple[str, str, str, bool]]:
        return sorted((t.name, t.dataset, t.prompt, t.load is None) for t in tasks)

    assert about(cached) == about(live)
    assert {"anli r1", "anli r2", "anli r3"} < {task.dataset for task in cached}
    by_name = {task.name: task for task in cached}
    for task in live:
        if task.dataset in ("super_glue/copa", "super_glue/cb"):
            read = by_name[task.name].load
            assert task.load is not None and read is not None
            assert read().examples == task.load().examples


def test_t0s_evaluation_names_missing_datasets(t0_eval: TaskMixtureConfig) -> None:
    tasks = tasks_lib.evaluation_tasks(t0_eval)
    assert len(tasks) == 116
    absent = {task.dataset: task.absent for task in tasks if task.absent}
    assert "https://cs.rochester.edu/nlp/rocstories" in str(absent["story_cloze/2016"])
    present = [task for task in tasks if task.load is not None]
    assert len(present) == 12 + 15 + 10 + 5
    cb = next(task for task in present if task.dataset == "super_glue/cb")
    assert cb.load is not None
    examples = cb.load().examples
    assert len(examples) == 60
    assert all(len(e.choices) == 3 and sum(e.correct) == 1 for e in examples)
    assert all(e.inputs[-1] != 1 and all(c[-1] == 1 for c in e.choices) for e in examples)
    with pytest.raises(UserError) as refused:
        tasks_lib.evaluation_tasks(dataclasses.replace(t0_eval, allow_missing_tasks=False))
    message = str(refused.value)
    assert message.startswith("data: 74 of the 116 tasks of t0_eval_score_eval are missing:")
    assert "story_cloze_2016_Answer_Given_options_score_eval and 4 others: " in message
    assert message.endswith("To use only 42 of 116 tasks, set data.allow_missing_tasks=True.")
    # The recipe allows it, and its report names what is missing.
    assert recipes.t0_eval().data.allow_missing_tasks is True


def test_documents_cannot_be_evaluated() -> None:
    data = TaskMixtureConfig(
        mixture_or_task_name="c4_v220_span_corruption",
        vocabulary=ByteVocabulary(),
        task_feature_lengths={"inputs": 8, "targets": 8},
    )
    with pytest.raises(UserError, match="documents, which have no targets to generate or to rank"):
        tasks_lib.evaluation_tasks(data)


def test_a_run_is_evaluated_with_its_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe's default is T5's vocabulary, which would be downloaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("urllib.request.urlopen", None)
    run = models.write_run(tmp_path / "run")
    config = recipes.t0_eval(checkpoint=str(run))
    opened = run_of.open_checkpoint(config_lib.build(config))
    assert opened.vocabulary == ByteVocabulary(125)


@pytest.mark.parametrize(("by", "last_id"), [("mtf", 1), ("another program", ord("d") + 3)])
def test_a_file_has_eos_if_the_export_says_so(
    file: Path, tmp_path: Path, by: str, last_id: int
) -> None:
    """Other programs write a tokenizer that appends EOS even for T0, whose inputs had none."""
    run = models.write_run(tmp_path / "run")
    export = tmp_path / "export"
    assert convert.main([str(run), str(export), "--to", "hf"]) == 0
    if by != "mtf":
        described = export / "tokenizer_config.json"
        described.write_text('{"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125}')
        (export / "checksums.json").unlink()
    evaluate = config_lib.build(recipes.t0_eval(checkpoint=str(export), files=str(file)))
    (task,) = run_of._tasks(evaluate, run_of.open_checkpoint(evaluate))
    assert task.load is not None
    assert task.load().examples[0].inputs[-1] == last_id
