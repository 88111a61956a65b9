"""mT0's evaluation: English prompts on rows in many languages."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtf.data.tasks.mixtures import mixture, prompted_task
from mtf.data.tasks.prompts.templates import Templates, load_templates

TURKISH = {
    "premise": "Kadın emekli oldu.",
    "choice1": "Emekli maaşını aldı.",
    "choice2": "İpoteğini ödedi.",
    "question": "effect",
    "label": 0,
    "idx": 2,
    "changed": False,
}


@pytest.fixture
def templates(prompts: Path) -> Templates:
    return load_templates(prompts)


def test_xcopas_text_is_that_of_copas_prompts(templates: Templates) -> None:
    num_compared = 0
    for task, _ in mixture("xcopa_eval", templates).tasks:
        if task.subset == "tr":
            english = prompted_task(task.name.replace("xcopa_tr", "super_glue_copa"), templates)
            expected = english.row_examples(TURKISH, 0, "validation")
            assert task.row_examples(TURKISH, 0, "validation") == expected
            num_compared += len(expected)
    assert num_compared == 12


# Language → sentences of a row of XStoryCloze and of XWinograd, in their columns.
STORY = {
    "story_id": "1",
    **{f"input_sentence_{i}": f"Sentensi ya {i}." for i in range(1, 5)},
    "sentence_quiz1": "Alifurahi.",
    "sentence_quiz2": "Alilia.",
    "answer_right_ending": 2,
}
WINOGRAD = {
    "sentence": "O troféu não cabe na mala porque _ é muito grande.",
    "option1": "o troféu",
    "option2": "a mala",
    "answer": "1",
}


@pytest.mark.parametrize(
    ("prefix", "row", "choices", "answer"),
    [
        ("xstory_cloze_sw", STORY, ["Alifurahi.", "Alilia."], "Alilia."),
        ("xwinograd_pt", WINOGRAD, ["o troféu", "a mala"], "o troféu"),
    ],
)
def test_the_papers_prompts_rank_rows_of_other_languages(
    prefix: str, row: dict[str, object], choices: list[str], answer: str, templates: Templates
) -> None:
    tasks = [t for t, _ in mixture("mt0_score_eval", templates).tasks if t.name.startswith(prefix)]
    assert len(tasks) == 5
    for task in tasks:
        examples = task.row_examples(row, 0, "validation")
        found = [example["targets"] for example in examples]
        right = [example["targets"] for example in examples if example["is_correct"]]
        assert (found, right) == (choices, [answer])


def test_xwinograd_is_validated_on_its_test_data(templates: Templates) -> None:
    for task, _ in mixture("mt0_score_eval", templates).tasks:
        expected = "test" if task.dataset == "xwinograd" else "validation"
        assert task.source_split("validation") == expected
