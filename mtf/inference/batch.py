"""Batch inference over files or tasks, written part by part."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mtf.cluster.heartbeat import PREDICTING, READING, WRITING, Heartbeat
from mtf.decoding.settings import DecodingConfig
from mtf.errors import UserError
from mtf.inference.api import encode
from mtf.inference.files import Request, Results, Summary, read_requests, summarize
from mtf.inference.predictor import NOT_FINITE, NotFiniteError, Predictor
from mtf.partitioning.processes import from_first_process, is_first_process
from mtf.progress import progress_bar
from mtf.sources.datasets import open_split
from mtf.sources.problems import Problems
from mtf.sources.text_files import named_files
from mtf.storage import AnyPath
from mtf.tasks.mixtures import Mixture, split_available
from mtf.tasks.task import Task
from mtf.text.vocabularies import Vocabulary


class Source(NamedTuple):
    """A file or a task.

    Attributes:
      name: name of the result.
      requests: returns an iterator over all examples.
      summary: number and hash of the examples.
      inputs_add_eos, targets_add_eos: whether EOS is appended.
    """

    name: str
    requests: Callable[[], Iterator[Request]]
    summary: Summary
    inputs_add_eos: bool
    targets_add_eos: bool


def file_sources(patterns: Sequence[str], mode: str, inputs_add_eos: bool) -> list[Source]:
    """Opens files; raises UserError if there is none or lines cannot be used."""
    advice = "and so would their results; rename one file, or run each with its own output_dir"
    sources, problems = [], Problems("files")
    for name, path in named_files(patterns, "files", advice).items():
        requests = functools.partial(read_requests, path)
        empty = f"files: {path} is empty"
        summary = summarize(requests(problems), empty, problems, need_targets=mode == "score")
        sources.append(Source(name, requests, summary, inputs_add_eos, True))
    problems.check()
    return sources


def task_sources(
    mixture: Mixture, split: str, mode: str, data_dir: str | None, inputs_add_eos: bool | None
) -> list[Source]:
    """Opens the tasks of a mixture that have data.

    Raises UserError if a task has documents or examples cannot be used.
    """
    tasks, absent = split_available(mixture, split, data_dir)
    for task, reason in absent:
        print(f"skipped: {task.name}: {reason}")
    sources, problems = [], Problems("mixture_or_task_name", "examples")
    for task in tasks:
        if task.kind == "documents":
            raise UserError(
                f"mixture_or_task_name: {task.name} contains documents; expected inputs and targets"
            )
        rows = open_split(task.dataset, task.subset, task.source_split(split), data_dir=data_dir)
        read = task
        if task.kind == "rank" and mode != "score":
            read = task.to_generate()  # Choices are scored, not decoded.
        requests = functools.partial(task_requests, read, rows, split)
        empty = f"mixture_or_task_name: {task.name} has no examples in its split {split}"
        summary = summarize(requests(), empty, problems, need_targets=mode == "score")
        add_eos = task.inputs_add_eos if inputs_add_eos is None else inputs_add_eos
        sources.append(Source(task.name, requests, summary, add_eos, task.targets_add_eos))
    problems.check()
    return sources


def task_requests(
    task: Task, rows: Any, split: str, seed: int = 0, failed: dict[int, str] | None = None
) -> Iterator[Request]:
    """Yields the examples of a task's records.

    Records that cannot be used are added to `failed`, with the reason; if it is None, the first one
    raises UserError.
    """
    for index, row in enumerate(rows):
        try:
            examples = task.row_examples(row, index, split, seed)
        except UserError as error:
            if failed is None:
                raise
            failed[index] = str(error)
            continue
        place = f"{task.name}, row {index} of {split}"
        for example in examples:
            yield Request(example["inputs"], example["targets"], place)


@dataclasses.dataclass(frozen=True)
class BatchInference:
    """Writes the results of sources; see `Infer` for the settings.

    Attributes:
      lengths: maximum number of tokens of "inputs" and "targets".
      part_size: number of examples in a part.
      heartbeat: records what this process does, and ends it if it hangs.
    """

    predictor: Predictor
    vocabulary: Vocabulary
    lengths: Mapping[str, int]
    mode: str
    decoding: DecodingConfig
    part_size: int
    shard_id: int
    num_shards: int
    heartbeat: Heartbeat = dataclasses.field(default_factory=Heartbeat)

    def write(self, source: Source, results: Results) -> AnyPath:
        """Writes the missing parts of a source's results, and returns the file (see `merged`).

        Raises UserError if an example has no tokens or a score is not a number.
        """
        primary = is_first_process()
        first, last = self.limits(source)
        # All processes use what the first one finds, even if they see other files.
        num_parts, done = from_first_process([results.num_parts, results.done])
        start = first + num_parts * self.part_size
        if not done:
            if primary:
                results.start()
            requests = itertools.islice(source.requests(), start, last)
            beat = self.heartbeat.beat
            with progress_bar(source.name, last - start, shown=primary) as show:

                def advance(number: int) -> None:
                    beat(PREDICTING)
                    show(number)

                for begin in range(start, last, self.part_size):
                    beat(READING)
                    part = list(itertools.islice(requests, min(self.part_size, last - begin)))
                    lines, num_truncated = self._lines(source, part, begin, advance)
                    if primary:
                        beat(WRITING)
                        results.write_part(lines, num_truncated)
        if not primary:
            return results.path
        self.heartbeat.beat(WRITING)
        results.finish()
        return results.merged()

    def limits(self, source: Source) -> tuple[int, int]:
        """Returns the numbers of this shard's first example, and of the first after its last."""
        total = source.summary.num_examples
        first, last = (total * i // self.num_shards for i in (self.shard_id, self.shard_id + 1))
        return first, last

    def report(self, source: Source, results: Results, written: AnyPath, was_done: bool) -> str:
        """Returns the lines for the terminal about results that `write` has completed."""
        first, last = self.limits(source)
        note = ", already complete" if was_done else ""
        if cut := results.num_truncated:
            note += f"; {cut} of the examples were truncated to task_feature_lengths"
        lines = [f"{results.path}: {last - first} lines{note}"]
        if written != results.path:
            lines.append(f"{written}: {source.summary.num_examples} lines from all shards")
        return "\n".join(lines)

    def _lines(
        self, source: Source, part: list[Request], begin: int, advance: Callable[[int], None]
    ) -> tuple[list[dict[str, Any]], int]:
        """Returns the lines of some examples, and how many of the examples were truncated.

        `begin` is the number of the first example. The numbers seed sampling.
        """
        given = [r.inputs if r.input_ids is None else r.input_ids for r in part]
        inputs, truncated = self._encode(given, "inputs", source.inputs_add_eos)
        if [] in inputs:
            raise UserError(
                f"{part[inputs.index([])].place}: the inputs have no tokens; expected at least one"
            )
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
                place = part[error.example].place
                raise UserError(f"{place}: the score is NaN or infinite. {NOT_FINITE}") from error
            return lines, len(truncated)
        seeds = range(begin, begin + len(part))
        self.heartbeat.beat(PREDICTING)
        generated = self.predictor.generate(inputs, self.decoding, seeds, on_progress=advance)
        for request, line, generations in zip(part, lines, generated, strict=True):
            scores = [generation.score for generation in generations]
            if not all(map(math.isfinite, scores)):
                raise UserError(f"{request.place}: the score is NaN or infinite. {NOT_FINITE}")
            texts = [self.vocabulary.decode(generation.ids) for generation in generations]
            several = self.decoding.num_return > 1
            line["prediction"] = texts if several else texts[0]
            if self.mode == "predict_with_aux":
                line["aux"] = {"scores": scores if several else scores[0]}
        return lines, len(truncated)

    def _encode(
        self, texts: Sequence[str | Sequence[int]], feature: str, add_eos: bool
    ) -> tuple[list[list[int]], set[int]]:
        """Returns the token ids of each text (or ids), and the indices of the truncated ones."""
        limit = self.lengths[feature]
        ids_of = functools.partial(encode, self.vocabulary, add_eos=add_eos, max_length=limit)
        encoded = list(map(ids_of, texts))
        return [ids for ids, _ in encoded], {i for i, (_, cut) in enumerate(encoded) if cut}


def _pretokenized(request: Request) -> dict[str, str]:
    """Returns the texts of an example with T5X's names."""
    texts = {"inputs_pretokenized": request.inputs, "targets_pretokenized": request.targets}
    return {name: text for name, text in texts.items() if text is not None}
