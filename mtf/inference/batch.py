"""Runs inference over files or tasks, and writes the results in parts."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mtf.base.errors import UserError
from mtf.base.processes.heartbeat import PREDICTING, READING, WRITING, Heartbeat
from mtf.base.progress import progress_bar
from mtf.data.sources.problems import Problems
from mtf.data.sources.text_files import named_files
from mtf.data.tasks.mixtures import Mixture, split_available
from mtf.data.tasks.task import Task
from mtf.data.text.vocabularies import Vocabulary
from mtf.inference.api import encode
from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.files import Request, Results, read_requests, summarize
from mtf.inference.predictor import NOT_FINITE, NotFiniteError, Predictor
from mtf.partitioning.processes import from_first_process, is_first_process
from mtf.storage import AnyPath


class Source(NamedTuple):
    """The examples of a file or a task.

    Attributes:
      name: name of the file or task; the names of the result files begin with this name.
      requests: function that returns an iterator over all examples.
      num_examples: number of examples.
      fingerprint: hash of their texts.
      inputs_add_eos, targets_add_eos: whether EOS is appended to inputs and to targets.
    """

    name: str
    requests: Callable[[], Iterator[Request]]
    num_examples: int
    fingerprint: str
    inputs_add_eos: bool
    targets_add_eos: bool


def file_sources(patterns: Sequence[str], mode: str, inputs_add_eos: bool) -> list[Source]:
    """Opens input files; raises UserError if no file exists or a line cannot be used."""
    advice = "and so would their results; rename one of them, or use an output_dir for each"
    sources, problems = [], Problems("files")
    for name, path in named_files(patterns, "files", advice).items():
        requests = functools.partial(read_requests, path)
        empty = f"files: {path} is empty"
        summary = summarize(requests(problems), empty, problems, need_targets=mode == "score")
        sources.append(Source(name, requests, *summary, inputs_add_eos, True))
    problems.check()
    return sources


def task_sources(
    mixture: Mixture, split: str, mode: str, data_dir: str | None, inputs_add_eos: bool | None
) -> list[Source]:
    """Opens the tasks of a mixture that have data.

    Raises UserError if a task consists of documents or an example cannot be used.
    """
    present, absent = split_available(mixture, split, data_dir)
    for task, reason in absent:
        print(f"skipped: {task.name}: {reason}")
    sources, problems = [], Problems("mixture_or_task_name", "examples")
    for task, rows in present:
        if task.kind == "documents":
            raise UserError(
                f"mixture_or_task_name: {task.name} contains documents; expected inputs and targets"
            )
        # Decoding needs one example per record, whereas scoring needs one per choice.
        read = task.to_generate() if task.kind == "rank" and mode != "score" else task
        requests = functools.partial(task_requests, read, rows, split)
        empty = f"mixture_or_task_name: {task.name} has no examples in its split {split}"
        summary = summarize(requests(), empty, problems, need_targets=mode == "score")
        add_eos = task.inputs_add_eos if inputs_add_eos is None else inputs_add_eos
        sources.append(Source(task.name, requests, *summary, add_eos, task.targets_add_eos))
    problems.check()
    return sources


def task_requests(
    task: Task, rows: Any, split: str, seed: int = 0, failed: dict[int, str] | None = None
) -> Iterator[Request]:
    """Yields the examples of a task, rendered from `rows`.

    If a row cannot be used, the reason is stored in `failed` under the number of the row. If
    `failed` is None, UserError is raised instead.
    """
    for index, row in enumerate(rows):
        try:
            examples = task.row_examples(row, index, split, seed)
        except UserError as error:
            if failed is None:
                raise
            failed[index] = str(error)
            continue
        location = f"{task.name}, row {index} of {split}"
        for example in examples:
            yield Request(example["inputs"], example["targets"], location)


@dataclasses.dataclass(frozen=True)
class BatchInference:
    """Runs inference over sources and writes the results. `Infer` describes the other attributes.

    Attributes:
      lengths: maximum number of tokens for each feature ("inputs" and "targets").
      part_size: number of examples in a part.
      heartbeat: monitor that records the activity of this process and ends it if it hangs.
    """

    predictor: Predictor
    vocabulary: Vocabulary
    lengths: Mapping[str, int]
    mode: str
    decoding: DecodingConfig
    part_size: int
    heartbeat: Heartbeat
    shard_id: int = 0
    num_shards: int = 1

    def write(self, source: Source, results: Results) -> AnyPath:
        """Computes and writes the missing parts of the results; returns the path of the results.

        Raises UserError if the inputs of an example have no tokens, or a score is NaN or infinite.
        """
        primary, beat = is_first_process(), self.heartbeat.beat
        first, last = self.limits(source)
        # Processes may see different files, but all processes must start with the same part.
        num_parts, done = from_first_process([len(results.parts), results.done])
        start = last if done else first + num_parts * self.part_size
        requests = itertools.islice(source.requests(), start, last)
        with progress_bar(source.name, last - start, shown=primary and not done) as show:

            def advance(number: int) -> None:
                beat(PREDICTING)
                show(number)

            for begin in range(start, last, self.part_size):
                beat(READING)
                part = list(itertools.islice(requests, self.part_size))
                lines, num_truncated = self._lines(source, part, begin, advance)
                if primary:
                    beat(WRITING)
                    results.write_part(lines, num_truncated)
        if not primary:
            return results.path
        beat(WRITING)
        results.finish()
        return results.merged()

    def limits(self, source: Source) -> tuple[int, int]:
        """Returns the index of this shard's first example, and the index after its last example."""
        total = source.num_examples
        first, last = (total * i // self.num_shards for i in (self.shard_id, self.shard_id + 1))
        return first, last

    def report(self, source: Source, results: Results, written: AnyPath, was_done: bool) -> str:
        """Returns the lines to print about results that `write` has completed."""
        first, last = self.limits(source)
        note = ", already complete" if was_done else ""
        if cut := results.num_truncated:
            note += f"; examples truncated to task_feature_lengths: {cut}"
        lines = [f"{results.path}: {last - first} lines{note}"]
        if written != results.path:
            lines.append(f"{written}: {source.num_examples} lines from all shards")
        return "\n".join(lines)

    def _lines(
        self, source: Source, part: list[Request], begin: int, advance: Callable[[int], None]
    ) -> tuple[list[dict[str, Any]], int]:
        """Returns the result lines of a part, and the number of truncated examples.

        `begin` is the index of the first example in `part`. The index of an example is its seed.
        """
        given = [r.inputs if r.input_ids is None else r.input_ids for r in part]
        inputs, truncated = self._encode(given, "inputs", source.inputs_add_eos)
        if [] in inputs:
            location = part[inputs.index([])].location
            raise UserError(f"{location}: the inputs have no tokens; expected at least one")
        lines: list[dict[str, Any]] = [{"inputs": _pretokenized(request)} for request in part]
        if self.mode == "score":
            texts = [request.targets or "" for request in part]
            targets, cut = self._encode(texts, "targets", source.targets_add_eos)
            truncated |= cut
            self.heartbeat.beat(PREDICTING)
            examples = ((ids, [target]) for ids, target in zip(inputs, targets, strict=True))
            found = self.predictor.log_likelihoods(examples, on_progress=advance)
            try:
                for line, score in zip(lines, found, strict=True):
                    line["score"] = float(score.log_likelihoods[0])
            except NotFiniteError as error:
                raise _not_finite(part[error.example]) from error
            return lines, len(truncated)
        seeds = range(begin, begin + len(part))
        self.heartbeat.beat(PREDICTING)
        generated = self.predictor.generate(inputs, self.decoding, seeds, on_progress=advance)
        for request, line, generations in zip(part, lines, generated, strict=True):
            scores = [generation.score for generation in generations]
            if not all(map(math.isfinite, scores)):
                raise _not_finite(request)
            texts = [self.vocabulary.decode(generation.ids) for generation in generations]
            several = self.decoding.num_return > 1
            line["prediction"] = texts if several else texts[0]
            if self.mode == "predict_with_aux":
                line["aux"] = {"scores": scores if several else scores[0]}
        return lines, len(truncated)

    def _encode(
        self, texts: Sequence[str | Sequence[int]], feature: str, add_eos: bool
    ) -> tuple[list[list[int]], set[int]]:
        """Returns the token ids of each text, and the indices of the texts that were truncated."""
        limit = self.lengths[feature]
        ids_of = functools.partial(encode, self.vocabulary, add_eos=add_eos, max_length=limit)
        encoded = list(map(ids_of, texts))
        return [ids for ids, _ in encoded], {i for i, (_, cut) in enumerate(encoded) if cut}


def _not_finite(request: Request) -> UserError:
    return UserError(f"{request.location}: the score is NaN or infinite. {NOT_FINITE}")


def _pretokenized(request: Request) -> dict[str, str]:
    """Returns a dict mapping the names that T5X uses to the texts of an example."""
    texts = {"inputs_pretokenized": request.inputs, "targets_pretokenized": request.targets}
    return {name: text for name, text in texts.items() if text is not None}
