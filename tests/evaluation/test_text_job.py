"""Evaluation of generated text, of one checkpoint and of all of a run, and what is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtf.base.errors import UserError
from mtf.cli.run import main
from mtf.data.mixtures import open_mixture
from mtf.data.settings import TaskMixtureConfig
from mtf.data.tasks.mixtures import Mixture
from mtf.data.tasks.prompted import PromptedTask
from mtf.data.text.vocabularies import ByteVocabulary
from mtf.evaluation.evaluator import Evaluator
from mtf.evaluation.metrics import compute
from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.predictor import Predictor
from mtf.jobs import Evaluate
from tests import small
from tests.cache import helpers
from tests.evaluation import one_of_processes
from tests.processes import run_processes
from tests.tasks.prompts.helpers import template

STEPS = (20, 40, 60)
LENGTHS = {"inputs": 32, "targets": 24}
COLOURS, ANIMALS = ("red", "blue", "green"), ("cat", "dog", "owl")
NAMES = ("sights_describe", "sights_name", "sights_colour_score_eval")

# The ranked task applies to the first ten rows only.
_TASKS = {
    "sights_describe": template(
        "{{ n }} {{ colour }} {{ animal }} ||| The {{ colour }} {{ animal }} is here",
        metrics=("ROUGE", "BLEU", "Squad"),
    ),
    "sights_name": template(
        "{{ n }} {{ colour }} {{ animal }} ||| The {{ animal }}", metrics=("Accuracy",)
    ),
    "sights_colour": template(
        "{% if n < 10 %}{{ n }} {{ colour }} {{ animal }} ||| {{ colour }}{% endif %}",
        "red ||| blue ||| green",
    ),
}


def rows(number: int) -> list[dict[str, Any]]:
    return [
        {"n": n, "colour": COLOURS[n * 7 % 3], "animal": ANIMALS[n * 5 // 3 % 3]}
        for n in range(number)
    ]


def mixture() -> Mixture:
    tasks = [
        PromptedTask(name=name, dataset="sights", subset=None, template=made)
        for name, made in _TASKS.items()
    ]
    tasks[2] = tasks[2].score_eval()
    return Mixture("sights", tuple((task, None) for task in tasks))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three checkpoints that learns to describe."""
    folder = tmp_path_factory.mktemp("text")
    pairs = folder / "pairs.jsonl"
    lines = [
        {
            "inputs": f"{row['n']} {row['colour']} {row['animal']}",
            "targets": f"The {row['colour']} {row['animal']} is here",
        }
        for row in rows(300)
    ]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {
        "train_steps": STEPS[-1],
        "model__network__dropout_rate": 0.0,
        "data__task_feature_lengths__targets": LENGTHS["targets"],
        "checkpoint__save__period": 20,
        "model_dir": "run",
    }
    small.run(small.arguments(pairs, **settings), folder)
    assert small.steps(folder / "run") == list(STEPS)
    mirror = folder / "mirror" / "sights"
    mirror.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows(30)), mirror / "validation.parquet")
    return folder / "run"


@pytest.fixture(autouse=True)
def custom_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defines the mixture `sights`; other mixtures are found as usual."""

    def find(data: TaskMixtureConfig) -> Mixture:
        name = data.mixture_or_task_name
        tasks = tuple(rated for rated in mixture().tasks if name in ("sights", rated[0].name))
        return Mixture(name, tasks) if tasks else open_mixture(data)

    monkeypatch.setattr("mtf.evaluation.tasks.open_mixture", find)


def job(run: Path, out: Path | None, mixture: str = "sights", **settings: Any) -> Evaluate:
    data = TaskMixtureConfig(
        mixture_or_task_name=mixture,
        vocabulary=ByteVocabulary(125),
        task_feature_lengths=LENGTHS,
        data_dir=str(run.parent / "mirror"),
    )
    out_dir = None if out is None else str(out)
    values = {"checkpoint": str(run), "batch_size": 8, "output_dir": out_dir, **settings}
    return Evaluate(data=data, **values)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def predictions(out: Path, task: str) -> tuple[list[str], list[str]]:
    """Reads the targets and predictions of a task from the job's file."""
    lines = read(out / "predictions" / f"{task}-predict.jsonl-00000-of-00001")
    return [x["inputs"]["targets_pretokenized"] for x in lines], [x["prediction"] for x in lines]


def test_metrics_are_those_of_the_predictions_file(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    result = job(run, out).run()
    assert [task.task for task in result.tasks] == list(NAMES)
    describe, name, colour = result.tasks

    targets, texts = predictions(out, "sights_describe")
    assert targets == [f"The {r['colour']} {r['animal']} is here" for r in rows(30)]
    inputs = [f"{r['n']} {r['colour']} {r['animal']}" for r in rows(30)]
    lines = read(out / "predictions" / "sights_describe-predict.jsonl-00000-of-00001")
    assert [line["inputs"]["inputs_pretokenized"] for line in lines] == inputs
    expected: dict[str, float] = {}
    for metric in ("rouge", "bleu", "squad"):
        expected |= compute(metric, targets, texts)
    assert 5 < expected["bleu"] < 100, "the model has learned some of it"
    assert describe.metrics == pytest.approx(expected)
    assert describe.num_examples == 30 and describe.kind == "generate"

    targets, texts = predictions(out, "sights_name")
    right = [target == text for target, text in zip(targets, texts, strict=True)]
    assert name.metrics == {"accuracy": pytest.approx(100 * np.mean(right))}

    ranked = read(out / "predictions.jsonl")
    assert len(ranked) == colour.num_examples == 10 and colour.num_left_out == 20
    best = [line["correct"][int(np.argmax(line["log_likelihoods"]))] for line in ranked]
    assert colour.metrics["accuracy"] == pytest.approx(100 * np.mean(best))

    written = json.loads((out / "results.json").read_text())
    assert written["step"] == 60 and written["decoding"]["num_beams"] == 1
    assert written["tasks"]["sights_describe"]["metrics"] == describe.metrics
    mean = (expected["rouge1"] + name.metrics["accuracy"]) / 2
    assert written["overall"]["mean_score"] == pytest.approx(mean)
    assert written["overall"]["mean_accuracy"] == colour.metrics["accuracy"]
    page = (out / "results.md").read_text()
    assert f"| sights | bleu | 1 of 1 | {expected['bleu']:.2f} |" in page
    assert "## sights, generated" in page
    assert {path.name for path in out.iterdir()} == {
        *("results.json", "results.md", "predictions.jsonl", "predictions", "accuracy.png"),
        *("environment.json", "tensorboard", "end.json", "processes"),
    }
    assert "Mean of the first metric over 2 of 2 generated tasks" in capsys.readouterr().out


def test_the_best_step_is_the_one_that_the_table_shows(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    metric = "sights_describe/rouge1"
    result = job(run, out, checkpoint_steps="all", metric_name_to_monitor=metric).run()
    shown = capsys.readouterr().out

    heading, *lines = [line.split("\t") for line in (out / "steps.tsv").read_text().splitlines()]
    values = {int(line[0]): float(line[heading.index(metric)]) for line in lines}
    assert list(values) == list(STEPS)
    # Recomputed from the predictions of each step.
    for step, value in values.items():
        found = compute("rouge", *predictions(out / f"checkpoint_{step}", "sights_describe"))
        assert value == pytest.approx(found["rouge1"])
    assert len(set(values.values())) > 1
    best = max(values, key=values.__getitem__)
    checkpoint = run / "checkpoints" / f"checkpoint_{best}"
    assert (result.best_step, result.best_checkpoint) == (best, checkpoint)
    assert result.tasks == result.steps[best]
    assert f"best step      {best} ({metric} {values[best]:.2f}, max): {checkpoint}" in shown
    steps = json.loads((out / "steps.json").read_text())
    assert (steps["best_step"], steps["best_checkpoint"]) == (best, str(checkpoint))
    assert steps["steps"][str(best)][metric] == values[best]
    assert (out / "steps.png").read_bytes().startswith(b"\x89PNG")

    # A step evaluated alone has the same results.
    alone = job(run, tmp_path / "alone", checkpoint=str(run / "checkpoints" / "checkpoint_20"))
    assert alone.run().tasks == result.steps[20]

    # The second job computes nothing; with "min", the worst step is the best.
    worst = job(
        run, out, checkpoint_steps="all", metric_name_to_monitor=metric, metric_mode="min"
    ).run()
    assert "already evaluated" in capsys.readouterr().out
    assert worst.best_step == min(values, key=values.__getitem__)
    assert {s: list(r) for s, r in worst.steps.items()} == {
        s: list(r) for s, r in result.steps.items()
    }


def test_only_the_first_checkpoint_compiles(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[int] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration") and compiled:
            compiled[-1] += 1

    evaluate = Evaluator.evaluate

    def counted(self: Evaluator, *args: Any, **kwargs: Any) -> Any:
        compiled.append(0)
        return evaluate(self, *args, **kwargs)

    monkeypatch.setattr(Evaluator, "evaluate", counted)
    jax.monitoring.register_event_duration_secs_listener(listen)
    # Other lengths than in other tests, whose functions are compiled already.
    decoding = DecodingConfig("beam", 9, num_beams=3)
    job(run, tmp_path / "out", checkpoint_steps="all", decoding=decoding).run()
    jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled[0] > 0 and compiled[1:] == [0, 0]


@pytest.mark.slow
def test_an_interrupted_evaluation_continues(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    generate, calls = Predictor.generate, []

    def interrupted(self: Predictor, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:  # In the second checkpoint, at its second task.
            raise KeyboardInterrupt
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(Predictor, "generate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job(run, out, checkpoint_steps="20:40").run()
    assert (out / "checkpoint_20" / "results.json").is_file()
    assert not (out / "checkpoint_40" / "results.json").is_file()
    done = [*(out / "checkpoint_20").rglob("*"), *(out / "checkpoint_40").rglob("*-predict.jsonl*")]
    times = {path: path.stat().st_mtime_ns for path in done if path.is_file()}
    assert any("checkpoint_40" in str(path) for path in times)

    found = job(run, out, checkpoint_steps="20:40").run()
    assert len(calls) == 5, "only the task that was interrupted is decoded"
    assert {path: path.stat().st_mtime_ns for path in times} == times
    monkeypatch.setattr(Predictor, "generate", generate)
    whole = job(run, tmp_path / "whole", checkpoint_steps=(20, 40)).run()
    assert found.steps == whole.steps
    assert not list(out.rglob("tmp-*"))


def test_other_settings_are_refused(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    name = "sights_name"
    job(run, out, name, checkpoint_steps=20).run()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert {"end.json", "0.json"} <= {path.name for path in before}
    greedy = DecodingConfig(max_length=5)
    with pytest.raises(
        UserError, match=r"other settings: decoding.method was 'beam' and is now 'gr"
    ):
        job(run, out, name, checkpoint_steps=20, decoding=greedy).run()
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"checkpoint_steps": 30}, "no checkpoint of step 30; the steps .* are 20, 40, 60"),
    ({"metric_name_to_monitor": "mean_score"}, "Set checkpoint_steps, for example to 'all'"),
    (
        {"checkpoint_steps": "all", "metric_name_to_monitor": "sights_name/acuracy"},
        "does not measure sights_name/acuracy.* Did you mean sights_name/accuracy",
    ),
    ({"metric_mode": "best"}, "metric_mode must be one of 'max', 'min'"),
    ({"decoding": DecodingConfig("beam", num_return=2)}, "num_return must be 1, not 2"),
]


@pytest.mark.parametrize(("settings", "says"), MISTAKES)
def test_mistakes_write_nothing(
    run: Path, tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        job(run, tmp_path / "out", **settings).run()
    assert not list(tmp_path.iterdir())


def test_a_cache_gives_the_same_predictions(run: Path, tmp_path: Path) -> None:
    """The tokens in the cache are decoded to texts."""
    cache = helpers.write_cache(
        tmp_path,
        mixture(),
        vocabulary=ByteVocabulary(125),
        data_dir=str(run.parent / "mirror"),
        splits=("validation",),
    )
    live = job(run, tmp_path / "live").run()
    data = helpers.data(
        cache,
        mixture_or_task_name="sights",
        vocabulary=ByteVocabulary(125),
        task_feature_lengths=LENGTHS,
    )
    cached = Evaluate(str(run), data, batch_size=8, output_dir=str(tmp_path / "cached")).run()
    for one, other in zip(live.tasks, cached.tasks, strict=True):
        assert one.metrics == pytest.approx(other.metrics)
    for name in NAMES[:2]:
        pairs = [predictions(tmp_path / which, name) for which in ("live", "cached")]
        assert sorted(zip(*pairs[0], strict=True)) == sorted(zip(*pairs[1], strict=True))


@pytest.mark.slow
def test_two_processes_evaluate_a_custom_mixture(run: Path, tmp_path: Path) -> None:
    mirror, steps = run.parent / "mirror", "60:"
    data = one_of_processes.custom_mixture(str(mirror))
    alone = Evaluate(str(run), data, 4, output_dir=str(tmp_path / "1"), checkpoint_steps=steps)
    result = alone.run()
    module = "tests.evaluation.one_of_processes"
    first, second = run_processes(module, 2, run, mirror, tmp_path / "2", steps)
    assert "best step " in first and "best step " not in second
    assert f"best of all: {result.best_step}\n" in first and "best of all: " in second
    tables = [
        json.loads((tmp_path / name / "steps.json").read_text())["steps"] for name in ("1", "2")
    ]
    assert tables[1]["60"] == pytest.approx(tables[0]["60"])
    texts = [predictions(tmp_path / n / "checkpoint_60", "custom_colour") for n in ("1", "2")]
    assert texts[0] == texts[1] and len(texts[0][0]) == 27


def test_the_command_line_evaluates_a_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{row['n']} {row['colour']} {row['animal']}\t{row['animal']}" for row in rows(9)]
    Path("test.tsv").write_text("inputs\ttargets\n" + "\n".join(lines) + "\n")
    data = "files={'validation': 'test.tsv'}, inputs='inputs', targets='targets'"
    arguments = [
        f"recipes.evaluate(checkpoint={str(run)!r}, checkpoint_steps='all')",
        *("--set", f"data=@mtf.builders.data.files({data}, metrics=('rouge', 'squad'))"),
        *("data.task_feature_lengths.inputs=32", "data.task_feature_lengths.targets=8"),
        *(
            "data.mixture_or_task_name=mine",
            "batch_size=4",
            "metric_name_to_monitor=mine/f1",
            "output_dir=out",
        ),
    ]
    described = small.run([*arguments, "--dry-run"], tmp_path)
    assert "best step by  mine/f1 (max)" in described and "20, 40, 60" in described
    assert re.search(r"decoding +beam, num_beams 1, max_length 8\n", described)
    assert not Path("out").exists()
    shown = small.run(arguments, tmp_path)
    assert re.search(r"^best step +\d+ \(mine/f1 [0-9.]+, max\): ", shown, re.MULTILINE)
    targets, _ = predictions(Path("out/checkpoint_60"), "mine")
    assert targets == [row["animal"] for row in rows(9)]
    assert small.run(arguments, tmp_path).count("already evaluated") == len(STEPS)


def test_a_column_that_no_row_has_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("test.tsv").write_text("question\tanswer\none\ttwo\nthree\tfour\n")
    data = "files={'validation': 'test.tsv'}, inputs='input', targets='answer'"
    arguments = [
        f"recipes.evaluate(checkpoint={str(run)!r})",
        *("--set", f"data=@mtf.builders.data.files({data}, metrics=('squad',))"),
        *("data.task_feature_lengths.inputs=32", "data.task_feature_lengths.targets=8"),
        *("data.mixture_or_task_name=mine", "batch_size=4", "output_dir=out"),
    ]
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert "mine: no row can be used. The first problem is in row" in message
    assert "question" in message and "Traceback" not in message
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == ["test.tsv"]
