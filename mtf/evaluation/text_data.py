"""Reads tasks with generated targets from datasets with templates or from a token cache."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from mtf.data.cache.format import TaskInfo
from mtf.data.cache.reader import SplitReader
from mtf.data.settings import TaskMixtureConfig
from mtf.data.sources.datasets import Rows
from mtf.data.sources.problems import Problems
from mtf.data.tasks.task import Task
from mtf.data.text.vocabularies import Vocabulary
from mtf.evaluation.task_data import TaskData
from mtf.inference.batch import Source, task_requests
from mtf.inference.files import Request, summarize

TextData = TaskData[Source]

# Number of cached examples that are read at a time.
_NUM_AT_ONCE = 1024


def load_live_text(task: Task, rows: Rows, split: str, data: TaskMixtureConfig) -> TextData:
    """Renders the examples of a task from the rows of a dataset."""
    failed: dict[int, str] = {}
    read = functools.partial(task_requests, task, rows, split, data.seed)
    source = _source(task, functools.partial(read, failed=failed))
    # `_source` has read all rows, so `failed` is complete.
    num_left_out = len(rows) - source.summary.num_examples - len(failed)
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
    return Source(task.name, requests, summary, task.inputs_add_eos, task.targets_add_eos)
