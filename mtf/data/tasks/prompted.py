"""Defines prompted tasks, each of which applies one template to one dataset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtf.base.errors import UserError, did_you_mean
from mtf.data.tasks import metrics
from mtf.data.tasks.prompts.render import fixed_answer_choices, render, rendering_version
from mtf.data.tasks.prompts.templates import Template, fingerprint
from mtf.data.tasks.task import SCORE_EVAL as SCORE_EVAL
from mtf.data.tasks.task import Task, rank_examples

# T5's metrics for GLUE and SuperGLUE. As in T0, wsc.fixed and multirc use the default, accuracy.
_BENCHMARK_METRICS = {
    ("glue", "mrpc"): ("f1", "accuracy"),
    ("glue", "qqp"): ("f1", "accuracy"),
    ("super_glue", "axg"): (),
    ("super_glue", "cb"): ("mean_3class_f1", "accuracy"),
    ("super_glue", "record"): ("squad",),
}


@dataclass(frozen=True, kw_only=True)
class PromptedTask(Task):
    """A task, with the same name as in T0, that applies a template to a dataset."""

    template: Template

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines the text of the examples."""
        template = fingerprint([self.template])
        version = rendering_version(self.template)
        return self.hash_of(self.prompt_name, self.kind, template, version)

    @property
    def label_classes(self) -> tuple[str, ...] | None:
        """The answer choices if they are the same for all records, else None."""
        return fixed_answer_choices(self.template)

    @property
    def metrics(self) -> tuple[str, ...]:
        """T5's names for the metrics, or `rank_classification` for ranked tasks."""
        if self.kind == "rank":
            return ("rank_classification",)
        if self.dataset in ("glue", "super_glue"):
            return _BENCHMARK_METRICS.get((self.dataset, self.subset or ""), ("accuracy",))
        known = metrics.in_prompts()
        for name in self.template.metrics:
            if name not in known:
                raise UserError(
                    f"task {self.name}: its template has an unknown metric {name!r}; "
                    f"expected one of {', '.join(known)}.{did_you_mean(name, known)}"
                )
        return tuple(dict.fromkeys(known[name] for name in self.template.metrics))

    def score_eval(self) -> PromptedTask:
        """Returns the ranked version of this task; raises UserError if it has no answer choices."""
        if self.template.answer_choices is None:
            raise UserError(f"task {self.name} has no answer choices to rank")
        return super().score_eval()

    def row_examples(
        self, row: Mapping[str, Any], index: int, split: str, seed: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the examples of record `index`, or [] if the template drops the record.

        The template's random choices depend on `seed`, `prompt_name`, the split and the index. Each
        example contains inputs, targets and, if the template defines them, answer_choices. If the
        task is ranked, each example instead contains inputs, targets (one of the choices), idx (the
        record's index and the choice's index), is_correct and weight.
        """
        rendered = render(self.template, row, f"{self.prompt_name}/{split}/{index}/{seed}")
        if rendered is None:
            return []
        inputs, targets, choices = rendered
        if self.kind == "generate":
            chosen = {} if choices is None else {"answer_choices": list(choices)}
            return [{"inputs": inputs, "targets": targets, **chosen}]
        return rank_examples(inputs, targets, choices or (), index)


def task_name(dataset: str, subset: str | None, template: str) -> str:
    """Returns T0's name for a task, which contains only letters, digits, `.` and `_`."""
    middle = f"_{subset}_" if subset else "_"
    return re.sub(r"[^\w\d\._]+", "_", dataset + middle + template)
