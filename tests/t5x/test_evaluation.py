"""The same checkpoint evaluated and used for inference by mtf and by T5X."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fiddle as fdl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recipes
from mtf.cli.run import main
from mtf.data.sources.datasets import open_split
from mtf.data.tasks.mixtures import mixture
from mtf.data.tasks.prompts.templates import load_templates
from mtf.data.text.vocabularies import ByteVocabulary
from tests import small
from tests.t5x import T5X_MISSING, custom_tasks

pytestmark = pytest.mark.skipif(T5X_MISSING, reason="T5X is not installed (docs/t5x.md)")

MODULE = custom_tasks.__name__
LENGTHS = {"inputs": 40, "targets": 16}
COLORS, ANIMALS = ["red", "blue", "green"], ["cat", "dog", "cow"]
DECODING = {
    "one beam": None,
    "four beams": "method='beam',num_beams=4,length_penalty=0.6,max_length=16",
    "no length penalty": "method='beam',num_beams=3,length_penalty=0.0,max_length=16",
    "greedy": "method='greedy',max_length=16",
    "zero temperature": "method='sample',temperature=0.0,max_length=16",
}


def sights(number: int) -> list[dict[str, Any]]:
    return [
        {"n": n, "colour": COLORS[n * 7 % 3], "animal": ANIMALS[n * 5 // 3 % 3]}
        for n in range(number)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a mirror of sights, and a run that has half learned to name colors."""
    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "mirror" / "sights").mkdir(parents=True)
    rows = pa.Table.from_pylist(sights(31))
    pq.write_table(rows, folder / "mirror" / "sights" / "validation.parquet")
    lines = [
        {"inputs": f"{row['n']} {row['colour']} {row['animal']}", "targets": row["colour"]}
        for row in sights(300)
    ]
    train(folder, "run", lines)
    return folder


def train(folder: Path, name: str, lines: list[dict[str, Any]], steps: int = 20) -> None:
    """Trains on pairs, in the directory `name`."""
    pairs = folder / f"{name}.jsonl"
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {
        "train_steps": steps,
        "data.pack": False,
        "model.network.dropout_rate": 0.0,
        "model_dir": name,
    }
    lengths = {f"data.task_feature_lengths.{name}": n for name, n in LENGTHS.items()}
    small.run(small.arguments(pairs, **settings, **lengths), folder)


def evaluate(folder: Path, name: str, *settings: str, run: str = "run") -> list[Path]:
    """Evaluates a mixture with mtf and with T5X; returns their directories."""
    return both(
        folder,
        f"recipes.evaluate(checkpoint='{run}', mixture_or_task_name='{name}')",
        f"data.module={MODULE}",
        f"data.task_feature_lengths={LENGTHS}",
        "batch_size=8",
        *settings,
    )


def both(folder: Path, recipe: str, *settings: str) -> list[Path]:
    """Runs a recipe with mtf and with T5X; returns their directories."""
    number = len([*folder.glob("mtf_*")])
    made = []
    for engine in ("mtf", "t5x"):
        output = f"{engine}_{number}"
        arguments = [recipe, "--engine", engine, "--set", *settings, f"output_dir={output}"]
        small.run(arguments, folder)
        made.append(folder / output)
    return made


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def metrics_of_t5x(output: Path) -> dict[str, dict[str, float]]:
    """Task → metrics of the last evaluation."""
    files = (output / "inference_eval").glob("*-metrics.jsonl")
    found = {file.name.removesuffix("-metrics.jsonl"): read(file)[-1] for file in files}
    return {task: values for task, values in found.items() if values.pop("step")}


def metrics_of_mtf(output: Path) -> dict[str, dict[str, float]]:
    tasks = json.loads((output / "results.json").read_text())["tasks"]
    # A task without examples has no metrics.
    return {name: task["metrics"] for name, task in tasks.items() if task["metrics"]}


def assert_same_metrics(ours: Path, theirs: Path) -> dict[str, dict[str, float]]:
    """Asserts that both have the same metrics of the same tasks; returns them."""
    expected, found = metrics_of_mtf(ours), metrics_of_t5x(theirs)
    assert found.keys() == expected.keys()
    for task, values in expected.items():
        assert found[task] == pytest.approx(values, rel=1e-5, nan_ok=True), task
    return found


def assert_same_outputs(ours: Path, theirs: Path) -> set[str]:
    """Asserts that all generated texts and scores of choices agree; returns the texts."""
    texts: set[str] = set()
    scores: dict[str, list[float]] = {}
    for line in read(ours / "predictions.jsonl"):
        scores.setdefault(line["task"], []).extend(line["log_likelihoods"])
    for file in (theirs / "inference_eval").glob("*-0000*.jsonl"):
        task, lines = file.name.rpartition("-")[0], read(file)
        if task in scores:
            found = [line["score"] for line in lines]
            assert found == pytest.approx(scores.pop(task), rel=1e-5, abs=1e-5), task
        else:
            expected = read(ours / "predictions" / f"{task}-predict.jsonl-00000-of-00001")
            outputs = [line["output"] for line in lines]
            assert outputs == [line["prediction"] for line in expected], task
            texts |= {*outputs}
    assert not scores
    return texts


def settings_of(decoding: str | None) -> list[str]:
    return [] if decoding is None else [f"decoding=@mtf.inference.DecodingConfig({decoding})"]


@pytest.mark.parametrize(
    "name",
    [
        each if each in ("one beam", "four beams") else pytest.param(each, marks=pytest.mark.slow)
        for each in DECODING
    ],
)
def test_generated_and_ranked_tasks(name: str, folder: Path) -> None:
    decoding = settings_of(DECODING[name])
    ours, theirs = evaluate(folder, "all_sights", "data.data_dir=mirror", *decoding)
    found = assert_same_metrics(ours, theirs)
    assert found.keys() == {"custom_colour", "custom_colour_score_eval", "told_sights"}
    assert found["told_sights"].keys() == {"rouge1", "rouge2", "rougeLsum", "bleu"}
    assert 0 < found["custom_colour"]["accuracy"] < 100
    assert len(assert_same_outputs(ours, theirs)) > 1


def test_prompts(folder: Path, prompts: Path, datasets_dir: Path) -> None:
    learned = [
        {"inputs": example["inputs"][: LENGTHS["inputs"]], "targets": example["targets"]}
        for task, _ in mixture(custom_tasks.PROMPTS[0], load_templates(prompts)).tasks
        for rows in [open_split(task.dataset, task.subset, "validation", data_dir=datasets_dir)]
        for example in task.examples(rows.rows(0, 50), "validation")
    ]
    train(folder, "prompted", learned, steps=60)
    mirror = [f"data.data_dir={datasets_dir}", f"data.templates={prompts}"]
    ours, theirs = evaluate(folder, "few_prompts", *mirror, run="prompted")
    found = assert_same_metrics(ours, theirs)
    assert len(found) == 6
    assert 0 < found[custom_tasks.PROMPTS[0]]["accuracy"] < 100
    assert_same_outputs(ours, theirs)


def test_t5x_evaluates_registered_tasks_with_our_metrics(folder: Path) -> None:
    from mtf.evaluation import seqio_registry
    from mtf.t5x import lower

    ours, _ = evaluate(folder, "custom_mixture", "data.data_dir=mirror")
    config = recipes.evaluate(checkpoint=str(folder / "run"), mixture_or_task_name="custom_mixture")
    config.data.module, config.data.data_dir = MODULE, str(folder / "mirror")
    config.data.task_feature_lengths, config.batch_size = LENGTHS, 8
    config.output_dir = str(folder / "registered")
    lowered = lower(config)
    seqio_registry.register(
        "custom_mixture", vocabulary=ByteVocabulary(125), data_dir=folder / "mirror"
    )
    # As in a gin file of T5X, by its name alone.
    lowered.dataset_cfg.mixture_or_task_name = "custom_mixture"
    fdl.build(fdl.cast(fdl.Partial, lowered))()
    assert_same_metrics(ours, folder / "registered")


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("predict_with_aux", "four beams"),
        ("score", "one beam"),
        pytest.param("predict", "greedy", marks=pytest.mark.slow),
        pytest.param("predict_with_aux", "one beam", marks=pytest.mark.slow),
    ],
)
def test_inference(mode: str, name: str, folder: Path) -> None:
    ours, theirs = both(
        folder,
        "recipes.infer",
        "checkpoint=run",
        "mixture_or_task_name=custom_colour",
        f"module={MODULE}",
        "data_dir=mirror",
        "split=validation",
        f"task_feature_lengths={LENGTHS}",
        f"mode={mode}",
        "decoding.max_length=16",
        *settings_of(DECODING[name]),
    )
    file = f"custom_colour-{mode}.jsonl-00000-of-00001"
    expected, found = read(ours / file), read(theirs / file)
    assert len(found) == len(expected) == 27
    for line, other in zip(found, expected, strict=True):
        numbers, others = (
            {"score": each.pop("score", 0.0), **each.pop("aux", {})} for each in (line, other)
        )
        assert line == other
        assert numbers == pytest.approx(others, rel=1e-5)


@pytest.mark.parametrize("decoding", ["method='beam',num_return=2,max_length=16", "max_length=8"])
def test_decoding_that_t5x_lacks_is_refused(
    decoding: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = f"recipes.infer(checkpoint='{folder / 'run'}', files='{folder / 'run.jsonl'}')"
    settings = [f"task_feature_lengths={LENGTHS}", *settings_of(decoding)]
    output = folder / "refused"
    arguments = [recipe, "--engine", "t5x", "--set", *settings, f"output_dir={output}"]
    assert main(arguments) == 2
    assert (
        "T5X always decodes up to task_feature_lengths['targets'] tokens" in capsys.readouterr().err
    )
    assert not output.exists()
