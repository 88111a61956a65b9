"""Reads the examples of tasks from datasets with templates, a token cache or files."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from mtf.base.errors import UserError
from mtf.data.cache.format import TaskInfo
from mtf.data.cache.reader import SplitReader
from mtf.data.settings import TaskMixtureConfig
from mtf.data.sources.datasets import Rows
from mtf.data.sources.lines import (
    check_unicode,
    get_field,
    get_text,
    parse_line,
    read_lines,
    split_suffix,
)
from mtf.data.sources.problems import Problems
from mtf.data.sources.text_files import named_files
from mtf.data.tasks.task import Task
from mtf.data.text.features import encode_feature
from mtf.data.text.vocabularies import Vocabulary
from mtf.evaluation.settings import RankFilesConfig
from mtf.inference.batch import Source, task_requests
from mtf.inference.files import Request, summarize

T = TypeVar("T")

# Number of cached examples with generated targets that are read at a time.
_NUM_AT_ONCE = 1024


@dataclass(frozen=True)
class RankExample:
    """The token ids of an example and its answer choices.

    Attributes:
      id: row number in the dataset (from 0), or line number in the file (from 1).
      inputs: token ids of the inputs.
      choices: token ids of each choice.
      correct: whether each choice is correct.
    """

    id: int
    inputs: list[int]
    choices: list[list[int]]
    correct: list[bool]


@dataclass
class TaskData(Generic[T]):
    """The examples of a task.

    Attributes:
      examples: for a ranked task, a list of `RankExample` in the order of the rows; for a task with
        generated targets, a `Source`.
      num_left_out: number of rows to which the prompt does not apply.
      failed: dict mapping the number of each unusable row to the reason.
    """

    examples: T
    num_left_out: int = 0
    failed: dict[int, str] = field(default_factory=dict)


RankData = TaskData[list[RankExample]]
TextData = TaskData[Source]


def load_live(
    task: Task, rows: Iterable[Mapping[str, Any]], split: str, data: TaskMixtureConfig
) -> RankData:
    """Renders the examples of a ranked task from the rows of a dataset."""
    loaded, ends = RankData([]), (task.inputs_add_eos, task.targets_add_eos)
    for index, row in enumerate(rows):
        try:
            choices = task.row_examples(row, index, split, data.seed)
            if not choices:
                loaded.num_left_out += 1
                continue
            inputs = choices[0]["inputs"]
            texts = [choice["targets"] for choice in choices]
            correct = [bool(choice["is_correct"]) for choice in choices]
            loaded.examples.append(_example(index, inputs, texts, correct, data.vocabulary, ends))
        except UserError as error:
            loaded.failed[index] = str(error)
    return loaded


def _example(
    number: int,
    inputs: str,
    choices: Sequence[str],
    correct: Sequence[bool],
    vocabulary: Vocabulary,
    ends: tuple[bool, bool],
) -> RankExample:
    """Encodes an example; `ends` tells whether to append EOS to the inputs and to each choice."""
    encode = functools.partial(encode_feature, vocabulary)
    ids = encode(inputs, add_eos=ends[0]).tolist()
    targets = [encode(choice, add_eos=ends[1]).tolist() for choice in choices]
    if len(ids) == ends[0]:
        raise UserError("the inputs have no tokens; expected at least one")
    for index, target in enumerate(targets):
        if len(target) == ends[1]:
            raise UserError(f"choices[{index}] has no tokens; expected at least one")
    return RankExample(number, ids, targets, list(correct))


def load_cached(
    read: Callable[[], SplitReader], info: TaskInfo, split: str, vocabulary: Vocabulary
) -> RankData:
    """Reads the examples of a ranked task from a token cache."""
    reader = read()
    encode = functools.partial(encode_feature, vocabulary)
    cached = sorted(reader.examples(range(len(reader))), key=lambda each: tuple(each["idx"]))
    # A cache contains no failed rows, because a template that fails stops the caching job.
    loaded = RankData([])
    for row, group in itertools.groupby(cached, key=lambda each: int(each["idx"][0])):
        choices = list(group)
        inputs = encode(choices[0]["inputs"], add_eos=info.inputs_add_eos).tolist()
        ids = [encode(each["targets"], add_eos=info.targets_add_eos).tolist() for each in choices]
        correct = [bool(each["is_correct"][0]) for each in choices]
        loaded.examples.append(RankExample(row, inputs, ids, correct))
    loaded.num_left_out = info.splits[split].num_rows - len(loaded.examples)
    return loaded


def load_files(data: RankFilesConfig) -> dict[str, RankData]:
    """Returns a dict mapping the name of each file, without suffix, to the file's examples.

    Raises UserError if a line cannot be used.
    """
    files = named_files(data.patterns, "data.files", "and so would their tasks; rename one of them")
    for file in files.values():
        if split_suffix(file)[1] != ".jsonl":
            raise UserError(f"data.files: {file} must end in .jsonl or .jsonl.gz")
    problems = Problems("data.files")
    loaded = {stem: _load_file(file, data, problems) for stem, file in files.items()}
    problems.check()
    return loaded


def _load_file(file: Path, data: RankFilesConfig, problems: Problems) -> RankData:
    assert data.vocabulary is not None
    loaded, ends = RankData([]), (bool(data.inputs_add_eos), True)
    for number, line in read_lines(file, "data.files"):
        if not line.strip():
            continue
        try:
            inputs, choices, label = _parse(line)
            # As in other ranked tasks, each choice that equals the labeled choice is correct.
            correct = [choice == choices[label] for choice in choices]
            loaded.examples.append(
                _example(number, inputs, choices, correct, data.vocabulary, ends)
            )
        except UserError as error:
            problems.add(f"{file}:{number}: {error}")
    if not loaded.examples and not problems.count:
        raise UserError(f"data.files: {file} has no examples; expected at least one")
    return loaded


def _parse(line: bytes) -> tuple[str, list[str], int]:
    """Returns the inputs, the choices and the label of a line."""
    expected = '{"inputs": text, "choices": [text, …], "label": index}'
    values = parse_line(".jsonl", line, expected)
    assert isinstance(values, dict)
    inputs = get_text(values, "inputs", expected)
    check_unicode("'inputs'", inputs)
    choices, label = (get_field(values, name, expected) for name in ("choices", "label"))
    if not isinstance(choices, list) or not all(isinstance(c, str) for c in choices) or not choices:
        raise UserError(f"choices is not a list of at least one string; expected {expected}")
    for index, choice in enumerate(choices):
        check_unicode(f"choices[{index}]", choice)
    if type(label) is not int or not 0 <= label < len(choices):
        raise UserError(
            f"label is {label!r}; expected the index of the correct choice, from 0 to "
            f"{len(choices) - 1}"
        )
    return inputs, choices, label


def load_live_text(task: Task, rows: Rows, split: str, data: TaskMixtureConfig) -> TextData:
    """Renders the examples of a task from the rows of a dataset."""
    failed: dict[int, str] = {}
    read = functools.partial(task_requests, task, rows, split, data.seed)
    source = _source(task, functools.partial(read, failed=failed))
    # `_source` has read all rows, so `failed` is complete.
    num_left_out = len(rows) - source.num_examples - len(failed)
    source = source._replace(requests=functools.partial(read, failed={}))
    return TextData(source, num_left_out, failed)


def load_cached_text(
    read: Callable[[], SplitReader], info: TaskInfo, vocabulary: Vocabulary
) -> TextData:
    """Reads the examples of a task from a token cache; `vocabulary` decodes their ids."""
    requests = functools.partial(_cached_requests, read(), info.name, vocabulary)
    # The cache contains only the rows to which the prompt applies.
    return TextData(_source(info, requests))


def _cached_requests(reader: SplitReader, name: str, vocabulary: Vocabulary) -> Iterator[Request]:
    for start in range(0, len(reader), _NUM_AT_ONCE):
        numbers = range(start, min(start + _NUM_AT_ONCE, len(reader)))
        for number, example in zip(numbers, reader.examples(numbers), strict=True):
            inputs, targets = example["inputs"].tolist(), example["targets"].tolist()
            texts = vocabulary.decode(inputs), vocabulary.decode(targets)
            yield Request(*texts, f"{name}, example {number} of the cache", inputs)


def _source(task: Task | TaskInfo, requests: Callable[[], Iterator[Request]]) -> Source:
    summary = summarize(requests(), None, Problems("data"))
    return Source(task.name, requests, *summary, task.inputs_add_eos, task.targets_add_eos)
