"""`python -m mtf.prompts fetch | show NAME`: promptsource's templates, got and looked at."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from mtf.command import add_source_options, exit_status, new_parser
from mtf.errors import UserError, did_you_mean
from mtf.sources.datasets import mirror_splits, open_split
from mtf.tasks.mixtures import list_tasks, prompted_task
from mtf.tasks.prompted import PromptedTask, task_name
from mtf.tasks.prompts.fetch import fetch
from mtf.tasks.prompts.templates import Template, Templates, load_templates
from mtf.tasks.task import Task

_EPILOG = """\
examples:
  python -m mtf.prompts fetch
  python -m mtf.prompts show super_glue/copa
  python -m mtf.prompts show super_glue_rte_can_we_infer -n 3 --data-dir mirror
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Does what the command line says; returns the exit status: 0 done, 2 refused."""
    options = _parser().parse_args(argv)
    if options.command == "fetch":
        return exit_status(_fetch, only_shows=False)
    return exit_status(lambda: _show(options), only_shows=True)


def _fetch() -> None:
    print(f"promptsource's templates: {fetch()}")


def _parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "prompts", "promptsource's prompt templates, which are read as data.", _EPILOG
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="get promptsource's templates into the user's cache")
    show = commands.add_parser("show", help="the templates of a dataset, or of one task")
    show.add_argument("name", help="DATASET, DATASET/SUBSET, or the name of a task")
    show.add_argument("-n", type=int, default=1, metavar="ROWS", help="rows to render (default: 1)")
    add_source_options(show)
    return parser


def _show(options: argparse.Namespace) -> None:
    if options.n < 0:
        raise UserError(f"-n {options.n}: expected a number of rows, 0 or more")
    templates = load_templates(options.templates)
    tasks = list(_tasks(options.name, templates))
    first = tasks[0]
    source = f"{first.dataset}/{first.subset}" if first.subset else first.dataset
    print(f"{templates.source}\n{source}: {len(tasks)} prompt{'s' * (len(tasks) != 1)}")
    for task in tasks:
        print(f"  {_title(task.template)}")
    rows = list(_rows(first, options.n, options.data_dir))
    if not rows:
        if options.n:
            print(f"No rows to render: no mirror has {source} (--data-dir, or MTF_DATA_DIR).")
        return
    for task in tasks:
        print(f"\n{task.name}")
        for index, split, row in rows:
            print(_rendered(task, row, index, split))


def _tasks(name: str, templates: Templates) -> Iterator[PromptedTask]:
    """Yields the task that is called `name`, or those of the dataset that is."""
    if name not in templates.datasets:
        known = list_tasks(templates)
        if name in known:
            yield prompted_task(name, templates)
            return
        raise UserError(
            f"there is no dataset and no prompted task {name!r}."
            f"{did_you_mean(name, [*templates.datasets, *known])}"
        )
    for template in templates.get(name):
        dataset, _, subset = name.partition("/")
        yield PromptedTask(
            name=task_name(dataset, subset or None, template.name),
            dataset=dataset,
            subset=subset or None,
            template=template,
        )


def _title(template: Template) -> str:
    notes = ["original task"] if template.original_task else []
    if template.answer_choices is not None:
        notes.append("answer choices: " + " ".join(template.answer_choices.split()))
    return template.name + (f"  ({'; '.join(notes)})" if notes else "")


def _rows(
    task: Task, number: int, data_dir: str | None
) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Yields (index, split, row) from a mirror; the hub is not asked, as it might be large."""
    splits = mirror_splits(task.dataset, task.subset, data_dir)
    if splits:
        split = next((name for name in ("validation", "train") if name in splits), splits[0])
        rows = open_split(task.dataset, task.subset, split, data_dir=data_dir)
        for index, row in enumerate(islice(rows, number)):
            yield index, split, row


def _rendered(task: PromptedTask, row: Mapping[str, Any], index: int, split: str) -> str:
    examples = task.row_examples(row, index, split)
    if not examples:
        return f"  {split} row {index}: the template leaves it out"
    shown = [("inputs", examples[0]["inputs"])]
    if task.kind == "rank":
        for example in examples:
            shown.append(("correct" if example["is_correct"] else "wrong", example["targets"]))
    else:
        shown.append(("targets", examples[0]["targets"]))
    width = max(len(name) for name, _ in shown)
    texts = [
        f"{name:<{width}}  {textwrap.indent(text, ' ' * (width + 6)).lstrip()}"
        for name, text in shown
    ]
    return "\n    ".join([f"  {split} row {index}", *texts])


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
