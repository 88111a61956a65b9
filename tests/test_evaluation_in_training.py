"""Evaluation during training: scores of decoded texts, and which checkpoints are kept."""

from __future__ import annotations

import json
import math
import random
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fiddle as fdl
import jax.numpy as jnp
import numpy as np
import pytest

import recipes
from mtf.base.errors import UserError
from mtf.checkpoints.manager import CheckpointManager
from mtf.checkpoints.settings import SaveCheckpointConfig
from mtf.cli.run import main
from mtf.data.examples import Example
from mtf.data.settings import TextFilesConfig
from mtf.data.tasks.mixtures import mixture
from mtf.data.text.vocabularies import ByteVocabulary
from mtf.evaluation.infer_eval import HeldOut, InferenceEvaluator, compare, find_held_out
from mtf.evaluation.settings import InferEvalConfig
from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.predictor import Generation
from mtf.jobs.train import run as train_run
from mtf.training.train_state import TrainState
from tests import small
from tests.cache import helpers

LAST_STEP = 60
COLOURS = ("red", "blue", "green")
BYTES = ByteVocabulary()


def write_pairs(folder: Path) -> Path:
    """Writes inputs with a colour in them, and that colour as targets."""
    rng = random.Random(0)
    lines = []
    for number in range(400):
        colour = rng.choice(COLOURS)
        lines.append(json.dumps({"inputs": f"{number % 7} {colour}", "targets": colour}))
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def arguments(pairs: Path | str, **settings: Any) -> list[str]:
    """Arguments of a run that evaluates and saves every tenth step; the largest loss is best."""
    values: dict[str, Any] = {
        "train_steps": LAST_STEP,
        "model__network__dropout_rate": 0.0,
        "trainer__eval_period": 10,
        "evaluator": "@mtf.evaluation.InferEvalConfig(period=10, num_examples=16)",
        "checkpoint__save__period": 10,
        "checkpoint__save__keep": 2,
        "checkpoint__save__metric_name_to_monitor": "training_eval/held_out/loss",
        "checkpoint__save__metric_mode": "max",
    }
    return small.arguments(pairs, **{**values, **settings})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs.jsonl, an uninterrupted run `whole`, and its output `said.txt`."""
    folder = tmp_path_factory.mktemp("evaluation")
    said = small.run(arguments(write_pairs(folder), model_dir="whole"), folder)
    (folder / "said.txt").write_text(said)
    return folder


# --------------------------------------------------------------------------------- decoded texts


def test_decoded_texts_are_scored_on_schedule(folder: Path) -> None:
    lines = small.read_metrics(folder / "whole", "inference_eval/held_out")
    assert [line["step"] for line in lines] == [10, 20, 30, 40, 50, 60]
    accuracies = [line["accuracy"] for line in lines]
    # Of 16 examples; guessing one of three colours is right a third of the time.
    assert all((accuracy * 16 / 100).is_integer() for accuracy in accuracies)
    assert accuracies[-1] >= 75
    (events,) = (folder / "whole" / "inference_eval" / "held_out").glob("events.out.tfevents.*")
    assert b"accuracy" in events.read_bytes()
    assert (
        f"step 60  held_out, decoded: accuracy {accuracies[-1]:.2f}"
        in (folder / "said.txt").read_text()
    )


def test_a_new_run_evaluates_before_its_first_step(folder: Path) -> None:
    """At a rate of almost 0, the first two losses are those of the initial parameters."""
    rate = "@mtf.builders.schedule.constant(learning_rate=0.0)"
    command = arguments(
        folder / "pairs.jsonl",
        model_dir="before",
        train_steps=10,
        optimizer__learning_rate=rate,
        trainer__run_eval_before_training=True,
    )
    small.run(command, folder)
    small.run(["--from", "before", "--set", "train_steps=20"], folder)
    for kind in ("training_eval", "inference_eval"):
        lines = small.read_metrics(folder / "before", f"{kind}/held_out")
        assert [line["step"] for line in lines] == [0, 10, 20]
    losses = [
        line["loss"] for line in small.read_metrics(folder / "before", "training_eval/held_out")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[0] != losses[1]
    assert losses[0] > small.read_metrics(folder / "whole", "training_eval/held_out")[0]["loss"]
    assert small.steps(folder / "before") == [10, 20]


def test_signal_saves_before_an_evaluation_which_is_made_up_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal at the last step, too, leaves only the evaluation to the resumed run."""
    evaluate = InferenceEvaluator.evaluate
    # Steps 10 (interrupted), 10, 20, …, 60 (interrupted), 60.
    calls = iter(range(8))

    def interrupted(self: InferenceEvaluator, params: Any, on_progress: Any = None) -> Any:
        if next(calls) in (0, 6):
            signal.raise_signal(signal.SIGTERM)
        return evaluate(self, params, on_progress)

    monkeypatch.chdir(folder)
    monkeypatch.setattr(InferenceEvaluator, "evaluate", interrupted)
    commands = [
        arguments(folder / "pairs.jsonl", model_dir="stopped"),
        *[["--from", "stopped"]] * 2,
    ]
    for step, command in zip((10, LAST_STEP, None), commands, strict=True):
        assert main(command) == 0
        said = capsys.readouterr().out
        if step is not None:
            assert re.search(
                rf"^SIGTERM: saved step {step} in .*; the resumed run will first "
                r"evaluate this step\nresume with: python -m mtf.run --from stopped$",
                said,
                re.MULTILINE,
            )
            assert small.steps(folder / "stopped")[-1] == step
            decoded = small.read_metrics(folder / "stopped", "inference_eval/held_out")
            assert all(line["step"] < step for line in decoded)
    assert next(calls, None) is None
    small.assert_same_end(folder / "stopped", folder / "whole", LAST_STEP)
    assert small.steps(folder / "stopped") == small.steps(folder / "whole")
    for step in small.steps(folder / "whole"):
        found = small.read_measured(folder / "stopped", step)
        assert found == small.read_measured(folder / "whole", step)


class _Scripted:
    """A predictor that returns the answers of a table."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.params: Any = None
        self.decoding: DecodingConfig | None = None
        self._answers = answers

    def generate(
        self, inputs: Iterable[list[int]], decoding: DecodingConfig, on_progress: Any = None
    ) -> Iterator[list[Generation]]:
        self.decoding = decoding
        for ids in inputs:
            answer = self._answers[BYTES.decode(ids)]
            yield [Generation(BYTES.encode(f"{answer} {self.params['number']}"), 0.0)]


def _example(inputs: str, targets: str) -> Example:
    return Example(
        np.array(BYTES.encode(inputs), np.int32),
        np.array([*BYTES.encode(targets), BYTES.eos_id], np.int32),
    )


def test_each_task_is_compared_with_its_own_targets() -> None:
    answers = {"a": "one", "b": "two", "c": "the three", "d": "four"}
    predictor = _Scripted(answers)
    first, second = ("accuracy",), ("squad", "trivia_qa", "accuracy")
    held_out = [
        HeldOut("first", [_example("a", "one 1"), _example("b", "one 1")], metrics=first),
        HeldOut("second", [_example("c", "three 1"), _example("d", "5 1")], metrics=second),
    ]
    decoding = DecodingConfig(max_length=8)
    evaluator = InferenceEvaluator(held_out, lambda _: predictor, BYTES, decoding, 5, 1)  # type: ignore[arg-type,return-value]
    assert evaluator.names == ("first", "second")
    assert evaluator.evaluate({"number": 1}) == {
        "first": {"accuracy": 50.0},
        # "4 1" has one word of two in common with "5 1".
        "second": {
            **{"squad/em": 50.0, "squad/f1": 75.0, "accuracy": 0.0},
            **{"trivia_qa/em": 50.0, "trivia_qa/f1": 75.0},
        },
    }
    # The parameters of each evaluation are used.
    assert evaluator.samples == [("a", "one 1", "one 1"), ("c", "three 1", "the three 1")]
    assert evaluator.evaluate({"number": 2})["first"] == {"accuracy": 0.0}
    assert evaluator.samples == [("a", "one 1", "one 2"), ("c", "three 1", "the three 2")]
    assert predictor.decoding == decoding


def test_texts_are_decoded_as_t5x_decodes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # T5X's infer_eval calls EncoderDecoderModel.predict_batch: beam_search with num_decodes=1.
    config = recipes.pretrain_text()
    config.data.files = str(write_pairs(tmp_path))
    config.data.task_feature_lengths = {"inputs": 32, "targets": 10}
    config.evaluator = fdl.Config(InferEvalConfig, num_examples=4)
    predictor = _Scripted({f"{n} {colour}": colour for n in range(7) for colour in COLOURS})
    monkeypatch.setattr(train_run, "_make_predictor", lambda *_: predictor)
    evaluator = train_run._make_evaluator(fdl.build(config), partitioner=None)
    assert evaluator is not None
    evaluator.evaluate({"number": 1})
    assert predictor.decoding == DecodingConfig("beam", 10, num_beams=1, length_penalty=0.6)


def test_the_tasks_of_a_mixture_are_evaluated_one_by_one(tmp_path: Path) -> None:
    cache = helpers.write_cache(tmp_path)
    # The fruit task's targets do not fit into those of training; the sums have no validation.
    data = helpers.data(cache, task_feature_lengths={"inputs": 64, "targets": 2})
    (found,) = find_held_out(data, InferEvalConfig(num_examples=7))
    assert (found.name, found.metrics) == ("food_fruit", ("accuracy",))
    texts = [(BYTES.decode(e.inputs), BYTES.decode(e.targets)) for e in found.examples]
    rows = [
        (e["inputs"], e["targets"])
        for e in helpers.FRUIT.examples(helpers.fruit_rows()[:20], "validation")
    ]
    assert len(set(texts)) == 7
    assert set(texts) <= set(rows)
    (all_of_them,) = find_held_out(data, InferEvalConfig(num_examples=None))
    assert len(all_of_them.examples) == 20


def test_classes_are_the_answer_choices_of_the_task(
    tmp_path: Path, prompts: Path, datasets_dir: Path
) -> None:
    task = mixture("super_glue_cb_can_we_infer")
    cache = helpers.write_cache(tmp_path, task, data_dir=str(datasets_dir), splits=("validation",))
    (found,) = find_held_out(helpers.data(cache, mixture_or_task_name=task.name), InferEvalConfig())
    yes, no, may_be = "entailment", "contradiction", "neutral"
    assert [found.postprocess(text) for text in (yes, no, may_be, "no")] == [0, 1, 2, -1]
    # The F1 of the first and of the last class is 2/3, that of the second 0.
    assert compare(found, [yes, no, no, may_be], [yes, yes, may_be, may_be]) == {
        "mean_3class_f1": pytest.approx(400 / 9),
        "accuracy": 50.0,
    }


def test_bad_settings_for_a_mixture(tmp_path: Path) -> None:
    data = helpers.data(helpers.write_cache(tmp_path))
    with pytest.raises(UserError, match=r"no metric 'acuracy'.*Did you mean accuracy"):
        find_held_out(data, InferEvalConfig(metrics=("acuracy",)))
    with pytest.raises(UserError, match=r"no task food_fruits.*Did you mean food_fruit"):
        find_held_out(data, InferEvalConfig(tasks=("food_fruits",)))


def test_bad_settings_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = {"inputs": 32, "targets": 16}
    files = str(write_pairs(tmp_path))
    data = TextFilesConfig(vocabulary=BYTES, task_feature_lengths=lengths, files=files)
    with pytest.raises(UserError, match="tasks can be set only if the data is a mixture"):
        find_held_out(data, InferEvalConfig(tasks=("some",)))
    with pytest.raises(UserError, match="f1 compares classes"):
        find_held_out(data, InferEvalConfig(metrics=("f1",)))
    # Libraries of metrics are looked for before training, not at the first evaluation.
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert find_held_out(data, InferEvalConfig(metrics=("accuracy",)))
    with pytest.raises(UserError, match=r"bleu needs the package sacrebleu.*mtf-jax\[eval\]"):
        find_held_out(data, InferEvalConfig(metrics=("accuracy", "bleu")))


# ------------------------------------------------------------------------------ best checkpoints


def test_the_best_checkpoint_stays_beside_the_newest(folder: Path) -> None:
    assert small.steps(folder / "whole") == [10, 50, 60]
    losses = small.read_metrics(folder / "whole", "training_eval/held_out")
    assert max(losses, key=lambda line: line["loss"])["step"] == 10
    said = (folder / "said.txt").read_text()
    best = r"best  .*checkpoint_10 \(training_eval/held_out/loss "
    assert re.search(rf"^exact match .* \(held_out\) at step 60\n{best}", said, re.MULTILINE)


def _state(step: int) -> TrainState:
    params = {"encoder": {"layers_0": {"kernel": jnp.ones(1)}}, "decoder": {}}
    return TrainState(jnp.int32(step), params, params)


def _saved(folder: Path, values: dict[int, float | None], **settings: Any) -> list[int]:
    """Saves steps with their `values`, with a new manager each; returns the steps that are kept."""
    defaults = {"keep": 1, "metric_name_to_monitor": "training_eval/t/loss", "metric_mode": "min"}
    chosen: dict[str, Any] = {**defaults, **settings}
    config = SaveCheckpointConfig(**chosen)
    for step, value in values.items():
        manager = CheckpointManager(folder, config)
        metrics = {} if value is None else {"training_eval/t/loss": value}
        manager.save(step, _state(step).state_dict(), {}, {"train/loss": 0.0, **metrics})
        manager.close()
    return small.steps(folder)


VALUES: dict[int, float | None] = {1: 3.0, 2: 1.0, 3: 5.0, 4: None, 5: math.nan, 6: 2.0, 7: 4.0}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [2, 7]),
        ({"metric_mode": "max"}, [3, 7]),
        ({"keep": 3}, [2, 5, 6, 7]),
        ({"keep_best": 3}, [1, 2, 6, 7]),
        ({"keep_checkpoints_without_metrics": True}, [2, 4, 5, 7]),
    ],
)
def test_which_checkpoints_stay(
    tmp_path: Path, settings: dict[str, Any], expected: list[int]
) -> None:
    assert _saved(tmp_path, VALUES, **settings) == expected


def test_of_equal_checkpoints_the_latest_stays(tmp_path: Path) -> None:
    assert _saved(tmp_path, {1: 2.0, 2: 1.0, 3: 1.0, 4: 3.0}) == [3, 4]


def test_the_metric_can_be_chosen_after_saving(tmp_path: Path) -> None:
    config = SaveCheckpointConfig(keep=None)
    manager = CheckpointManager(tmp_path, config)
    for step, loss in enumerate([3.0, 1.0, 2.0], start=1):
        manager.save(step, _state(step).state_dict(), {}, {"training_eval/t/loss": loss})
    assert manager.best() is None
    manager.close()
    assert _saved(tmp_path, {4: 4.0}) == [2, 4]


def test_steps_that_are_saved_besides(tmp_path: Path) -> None:
    config = SaveCheckpointConfig(period=10, checkpoint_steps=(3, 14))
    manager = CheckpointManager(tmp_path, config)
    assert [step for step in range(1, 25) if manager.due(step)] == [3, 10, 14, 20]
    manager.close()


BAD: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"checkpoint__save__metric_name_to_monitor": "training_eval/held_out/los"},
        [
            "does not measure training_eval/held_out/los;",
            "Did you mean training_eval/held_out/loss",
        ],
    ),
    (
        {"checkpoint__save__metric_name_to_monitor": "inference_eval/held_out/acuracy"},
        [
            "its metrics begin with train, training_eval/held_out, inference_eval/held_out",
            "accuracy",
        ],
    ),
    ({"checkpoint__save__metric_mode": None}, ["metric_mode is not set", "'min' if the lowest"]),
    (
        {"checkpoint__save__metric_name_to_monitor": None},
        ["metric_mode is 'max', but metric_name_to_monitor is not set"],
    ),
    (
        {"trainer__eval_period": 20},
        ["period 10 is not a multiple of trainer.eval_period 20", "20."],
    ),
    ({"trainer__eval_period": None}, ["is not measured because trainer.eval_period is None"]),
    ({"checkpoint__save__checkpoint_steps": "(5,)"}, ["checkpoint_steps 5 is not a multiple"]),
    ({"checkpoint__save__keep_best": 0}, ["keep_best must be at least 1, not 0"]),
    ({"evaluator.period": 0}, ["evaluator: period must be at least 1, not 0"]),
    ({"evaluator.num_examples": 0}, ["num_examples must be at least 1 or None, not 0"]),
]


@pytest.mark.parametrize(("settings", "says"), BAD, ids=[", ".join(each) for each, _ in BAD])
def test_bad_settings(
    settings: dict[str, Any],
    says: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path)
    assert main(arguments("pairs.jsonl", model_dir="run", **settings)) == 2
    message = capsys.readouterr().err
    assert all(part in message for part in says), message
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]


def test_the_documented_example_is_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = small.ROOT / "docs" / "gallery" / "question_classification.md"
    (code,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    (tmp_path / "trec.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    assert main(["trec.py:recipe", "--print", "flat"]) == 0
    metric = "checkpoint.save.metric_name_to_monitor = 'inference_eval/trec_"
    assert metric in capsys.readouterr().out
