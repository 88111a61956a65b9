"""What all tasks have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mtf.data.tasks.prompted import PromptedTask
from mtf.data.tasks.prompts import render
from mtf.data.tasks.task import Task
from mtf.data.tasks.text import text_tasks
from mtf.data.tasks.translation import translation_tasks
from tests.tasks.prompts.helpers import template

FRUIT = template("Is {{ x }} a fruit? ||| {{ answer_choices[label] }}", "no ||| yes")
PROMPTED = PromptedTask(name="food_fruit", dataset="food", subset=None, template=FRUIT)
TASKS: list[tuple[Task, dict[str, Any]]] = [
    (PROMPTED, {"x": "an apple", "label": 1}),
    (PROMPTED.score_eval(), {"x": "an apple", "label": 1}),
    (text_tasks()["mc4.ro"], {"text": "Un măr."}),
    (translation_tasks()["opus100_en_ro_mt"], {"translation": {"en": "apple", "ro": "măr"}}),
]


@pytest.mark.parametrize(("task", "row"), TASKS, ids=[task.name for task, _ in TASKS])
def test_fingerprints_follow_the_dataset_and_eos(task: Task, row: dict[str, Any]) -> None:
    changed = [
        replace(task, dataset="other"),
        replace(task, subset="other"),
        replace(task, inputs_add_eos=not task.inputs_add_eos),
        replace(task, splits={"train": "other"}),
    ]
    assert len({task.fingerprint, *(other.fingerprint for other in changed)}) == 5


def test_the_fingerprint_of_a_prompted_task_follows_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = [
        replace(PROMPTED, template=replace(FRUIT, jinja=FRUIT.jinja + ".")),
        replace(PROMPTED, template=replace(FRUIT, answer_choices="nein ||| ja")),
        # Random choices of a template depend on the task's name.
        replace(PROMPTED, name="other"),
        PROMPTED.score_eval(),
    ]
    fingerprints = {PROMPTED.fingerprint, *(task.fingerprint for task in changed)}
    assert len(fingerprints) == 5
    monkeypatch.setattr(render, "RENDERING_VERSION", render.RENDERING_VERSION + 1)
    assert PROMPTED.fingerprint not in fingerprints
