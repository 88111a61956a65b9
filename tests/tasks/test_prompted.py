"""Tasks: names, examples to generate and to rank, metrics."""

from __future__ import annotations

from typing import Any

import pytest

from mtf.base.errors import UserError
from mtf.data.tasks.prompted import PromptedTask, task_name
from tests.tasks.prompts.helpers import template

FRUIT = template("Is {{ x }} a fruit? ||| {{ answer_choices[label] }}", "no ||| yes")
ROWS = [{"x": "an apple", "label": 1}, {"x": "a stone", "label": 0}]


def made(dataset: str = "food", subset: str | None = None, **fields: Any) -> PromptedTask:
    fields = {"name": "food", "template": FRUIT, **fields}
    return PromptedTask(dataset=dataset, subset=subset, **fields)


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("anli", None, "can we infer"), "anli_can_we_infer"),
        (("super_glue", "wsc.fixed", "p is/are r"), "super_glue_wsc.fixed_p_is_are_r"),
        (("cnn_dailymail", "3.0.0", "a-b"), "cnn_dailymail_3.0.0_a_b"),
        (("gigaword", None, "summarize: "), "gigaword_summarize_"),
        (("a/b", None, "…why? x_y"), "a_b__why_x_y"),
        (("a", "b", "été 2"), "a_b_été_2"),
    ],
)
def test_names(parts: tuple[str, str | None, str], name: str) -> None:
    assert task_name(*parts) == name


def test_an_example_to_generate() -> None:
    assert list(made().examples(ROWS, "train")) == [
        {"inputs": "Is an apple a fruit?", "targets": "yes", "answer_choices": ["no", "yes"]},
        {"inputs": "Is a stone a fruit?", "targets": "no", "answer_choices": ["no", "yes"]},
    ]
    assert (made().inputs_add_eos, made().targets_add_eos) == (False, True)
    free = made(template=template("Say {{ x }} ||| {{ x }}"))
    assert list(free.examples(ROWS[:1], "train")) == [
        {"inputs": "Say an apple", "targets": "an apple"}
    ]


def test_an_example_to_rank_for_each_choice() -> None:
    twin = made().score_eval()
    assert twin.name == "food_score_eval" and twin.kind == "rank"
    examples = list(twin.examples(ROWS, "validation"))
    assert [(e["inputs"], e["targets"]) for e in examples] == [
        ("Is an apple a fruit?", "no"),
        ("Is an apple a fruit?", "yes"),
        ("Is a stone a fruit?", "no"),
        ("Is a stone a fruit?", "yes"),
    ]
    assert [e["idx"] for e in examples] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert [e["is_correct"] for e in examples] == [False, True, True, False]
    assert {e["weight"] for e in examples} == {1.0}


def test_rows_that_are_left_out_leave_their_number_free() -> None:
    chosen = template("{% if label %}{{ x }} ||| a{% endif %}", "a ||| b")
    examples = list(made(template=chosen).score_eval().examples([*ROWS[::-1]], "test"))
    assert [e["idx"] for e in examples] == [[1, 0], [1, 1]]
    unlabelled = made(template=template("x ||| ", "no ||| yes")).score_eval()
    assert [e["is_correct"] for e in unlabelled.examples([{}], "test")] == [False, False]


def test_random_choices_follow_seed_task_split_and_row() -> None:
    random = template("{{ x | choice }} ||| a", "a ||| b")
    rows = [{"x": list(range(1000))}] * 20
    task = made(template=random)

    def inputs(task: PromptedTask, split: str = "train", seed: int = 0) -> list[str]:
        return [example["inputs"] for example in task.examples(rows, split, seed)]

    first = inputs(task)
    assert len(set(first)) > 15  # the rows are the same, their numbers are not
    assert inputs(task) == first
    assert inputs(made(template=random, name="other")) != first
    assert inputs(task, "validation") != first
    assert inputs(task, seed=1) != first
    assert inputs(task.score_eval())[::2] == first  # the twin has the same text
    assert [task.row_examples(rows[0], i, "train")[0]["inputs"] for i in (7, 3)] == [
        first[7],
        first[3],
    ]


def test_postprocessing() -> None:
    fixed = made()
    assert [fixed.postprocess(text) for text in (" yes\n", "no", "perhaps", "Yes")] == [
        1,
        0,
        -1,
        -1,
    ]
    assert fixed.label_classes == ("no", "yes")
    varying = made(template=template("x ||| y", "{{ a }} ||| b"))
    assert varying.postprocess(" b ") == "b" and varying.label_classes is None


@pytest.mark.parametrize(
    ("dataset", "subset", "metrics"),
    [
        ("glue", "mrpc", ("f1", "accuracy")),
        ("super_glue", "cb", ("mean_3class_f1", "accuracy")),
        ("super_glue", "record", ("squad",)),
        ("super_glue", "rte", ("accuracy",)),
        ("super_glue", "multirc", ("accuracy",)),
        ("xsum", None, ("rouge", "bleu", "accuracy")),
    ],
)
def test_metrics(dataset: str, subset: str | None, metrics: tuple[str, ...]) -> None:
    prompt = template("x ||| y", "y ||| z", metrics=("ROUGE", "BLEU", "Other"))
    task = made(dataset, subset, template=prompt)
    assert task.metrics == metrics
    assert task.score_eval().metrics == ("rank_classification",)


def test_an_unknown_metric_is_named() -> None:
    task = made(template=template("x ||| y", metrics=("Acuracy",)))
    with pytest.raises(UserError, match=r"task food: .*'Acuracy'; .*Did you mean Accuracy"):
        _ = task.metrics
