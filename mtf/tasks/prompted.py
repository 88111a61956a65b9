"""A prompted task: one template applied to one dataset, to be generated or ranked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mtf.errors import UserError, did_you_mean
from mtf.tasks.prompts.render import RENDERING_VERSION, fixed_answer_choices, render
from mtf.tasks.prompts.templates import Template, fingerprint
from mtf.tasks.task import Task

SCORE_EVAL = "_score_eval"

# T5's metrics of GLUE and SuperGLUE; T0 scores wsc.fixed and multirc by accuracy.
_BENCHMARK_METRICS = {
    ("glue", "mrpc"): ("f1", "accuracy"),
    ("glue", "qqp"): ("f1", "accuracy"),
    ("super_glue", "axg"): (),
    ("super_glue", "cb"): ("mean_3class_f1", "accuracy"),
    ("super_glue", "record"): ("squad",),
}
# promptsource's names of metrics → T5's.
_METRICS = {
    "BLEU": "bleu",
    "ROUGE": "rouge",
    "Span Squad": "span_squad",
    "Squad": "squad",
    "Trivia QA": "trivia_qa",
    "Accuracy": "accuracy",
    "Sequence Accuracy": "sequence_accuracy",
    "Pearson Correlation": "pearson_corrcoef",
    "Spearman Correlation": "spearman_corrcoef",
    "MultiRC": "multirc_f1_over_all_answers",
    "AUC": "auc",
    "COQA F1": "coqa_f1",
    "Edit Distance": "edit_distance",
    "Other": "accuracy",
}


@dataclass(frozen=True, kw_only=True)
class PromptedTask(Task):
    """A template applied to a dataset; the names are T0's."""

    template: Template

    @property
    def fingerprint(self) -> str:
        """Hash of the template, how it is applied, and what its random choices depend on."""
        template = fingerprint([self.template])
        return self.hash_of(self.prompt_name, self.kind, template, RENDERING_VERSION)

    @property
    def prompt_name(self) -> str:
        """Name of the task to be generated: its own, or that of the task it is the twin of."""
        return self.name.removesuffix(SCORE_EVAL) if self.kind == "rank" else self.name

    @property
    def label_classes(self) -> tuple[str, ...] | None:
        """The answer choices if they are the same for every row, else None."""
        return fixed_answer_choices(self.template)

    @property
    def metrics(self) -> tuple[str, ...]:
        """T5's names of the metrics; a ranked task has `rank_classification`."""
        if self.kind == "rank":
            return ("rank_classification",)
        if self.dataset in ("glue", "super_glue"):
            return _BENCHMARK_METRICS.get((self.dataset, self.subset or ""), ("accuracy",))
        for name in self.template.metrics:
            if name not in _METRICS:
                raise UserError(
                    f"task {self.name}: its template has an unknown metric {name!r}; "
                    f"expected one of {', '.join(_METRICS)}.{did_you_mean(name, _METRICS)}"
                )
        return tuple(dict.fromkeys(_METRICS[name] for name in self.template.metrics))

    def score_eval(self) -> PromptedTask:
        """Returns the ranked twin of this task; raises UserError without answer choices."""
        if self.template.answer_choices is None:
            raise UserError(f"task {self.name} has no answer choices to be ranked")
        return replace(self, name=self.name + SCORE_EVAL, kind="rank")

    def to_generate(self) -> PromptedTask:
        """Returns the task that this ranked one is the twin of: one example per row."""
        return replace(self, name=self.prompt_name, kind="generate")

    def row_examples(
        self, row: Mapping[str, Any], index: int, split: str, seed: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the examples of row `index` of a split; none if the template leaves it out.

        Random choices of the template depend on `seed`, the task (its twin has the same text), the
        split and the index. An example to be generated has inputs, targets and the template's
        answer_choices, if any; one to be ranked has inputs, targets, idx [row, choice], is_correct
        (whether targets are the row's) and weight 1.
        """
        rendered = render(self.template, row, f"{self.prompt_name}/{split}/{index}/{seed}")
        if rendered is None:
            return []
        inputs, targets, choices = rendered
        if self.kind == "generate":
            chosen = {} if choices is None else {"answer_choices": list(choices)}
            return [{"inputs": inputs, "targets": targets, **chosen}]
        return [
            {
                "inputs": inputs,
                "targets": choice,
                "idx": [index, number],
                "is_correct": choice == targets,
                "weight": 1.0,
            }
            for number, choice in enumerate(choices or ())
        ]

    def postprocess(self, text: str) -> str | int:
        """Returns what metrics compare: a class index (-1: no class), or the stripped text."""
        text, classes = text.strip(), self.label_classes
        if classes is None:
            return text
        return classes.index(text) if text in classes else -1


def task_name(dataset: str, subset: str | None, template: str) -> str:
    """Returns T0's name of a task: everything but word characters, `.` and `_` becomes `_`."""
    middle = f"_{subset}_" if subset else "_"
    return re.sub(r"[^\w\d\._]+", "_", dataset + middle + template)
