"""Reads custom tasks and mixtures that the user's module (`data.module`) registers with SeqIO.

The loader "seqio" uses these tasks directly. For `mtf.cache` and all other code that reads records,
each task becomes a `SeqioTask`, whose records are the examples that SeqIO's preprocessors return.

In both cases, the vocabulary of the run replaces the vocabularies of all text features.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import hashlib
import inspect
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import seqio

from mtf.base.errors import UserError, suggestion
from mtf.data.examples import Example
from mtf.data.seqio_tasks.tasks import seqio_vocabulary
from mtf.data.sources import datasets
from mtf.data.sources.files import Rows, keep
from mtf.data.tasks.mixtures import Mixture, Rated, list_mixtures
from mtf.data.tasks.registry import definition, import_module
from mtf.data.tasks.task import Task
from mtf.data.text.vocabularies import Vocabulary

_WHOLE = 1 << 20  # a length that does not truncate any targets
# Names that are at least this similar to a registered name are treated as misspellings.
_SIMILAR = 0.85

# Preprocessors of SeqIO that only append EOS. Readers of the token cache append EOS themselves.
_APPEND_EOS = ("append_eos", "append_eos_after_trim")


@dataclass(frozen=True, kw_only=True)
class SeqioTask(Task):
    """A task that is registered with SeqIO.

    Attributes:
      source: the task in SeqIO, with the vocabulary of the run.
      module: module that registers the task; None if it is unknown.
      run_vocabulary: vocabulary of the run.
      fingerprint: hash of the task's preprocessors and source.
      absent: reason why the task has no data; None if it has data.
    """

    source: Any = field(compare=False)
    module: str | None
    run_vocabulary: Vocabulary
    fingerprint: str = ""
    absent: str | None = None

    def source_split(self, split: str) -> str:
        """See `Task`; raises MissingDatasetError if the task has no data."""
        if self.absent is not None:
            raise datasets.MissingDatasetError(self.absent)
        return super().source_split(split)

    def source_of(self, split: str) -> datasets.Source:
        """See `Task`; the source of a task without data raises MissingDatasetError when opened."""
        name = split if self.absent is not None else self.source_split(split)
        return datasets.Source(self.dataset, self.subset, name, self.make_rows)

    def make_rows(self, split: str) -> Rows:
        """Returns the examples that SeqIO generates for a split; raises MissingDatasetError."""
        if self.absent is not None:
            raise datasets.MissingDatasetError(self.absent)
        _check_records(self)
        return _Examples(self.source, split)

    def scorer(
        self, split: str, lengths: Mapping[str, int], limit: int | None = None
    ) -> Scorer | None:
        """See `Task`."""
        return Scorer(self, split, lengths, limit) if self.source.metric_fns else None

    def __reduce__(self) -> Any:
        """Pickles the task's name instead of its functions, which may not be picklable."""
        return _found_in, (self.module, self.name, self.run_vocabulary)

    def row_examples(
        self, row: Mapping[str, Any], index: int, split: str, seed: int = 0
    ) -> list[dict[str, Any]]:
        """Returns inputs and targets, each as text, or as ids if its text encodes to other ids."""
        return [{name: self._feature(row, name) for name in ("inputs", "targets")}]

    def _feature(self, row: Mapping[str, Any], name: str) -> Any:
        ids = row[name].tolist()
        if self.source.output_features[name].add_eos and ids[-1:] == [self.run_vocabulary.eos_id]:
            ids.pop()
        text = row.get(f"{name}_pretokenized")
        text = text.decode() if isinstance(text, bytes) else self.run_vocabulary.decode(ids)
        return text if self.run_vocabulary.encode(text) == ids else ids


class _Examples(Rows):
    """The examples of a split, which SeqIO generates on demand.

    When the examples are counted, all of them are generated and stored in a temporary file, from
    which they are read afterwards.
    """

    def __init__(self, task: seqio.Task, split: str):
        self._task = task
        self._split = split

    def __len__(self) -> int:
        return len(self._kept)

    @functools.cached_property
    def _kept(self) -> Rows:
        what = f"the examples of the SeqIO task {self._task.name} ({self._split})"
        return keep(self._start(), what)

    def kept(self) -> Rows:
        """See `Rows`."""
        return self._kept

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """See `Rows`."""
        if "_kept" in vars(self):
            return self._kept.rows(start, stop)
        return itertools.islice(self._start(), start, stop)

    def _start(self) -> Iterator[dict[str, Any]]:
        with _named(self._task, f"split {self._split!r}"):
            made = self._task.get_dataset(None, self._split, shuffle=False, seed=0)
            yield from made.as_numpy_iterator()


def provider(name: str, vocabulary: Vocabulary) -> seqio.Task | seqio.Mixture:
    """Returns a registered task or mixture, with `vocabulary` for its text features.

    Tasks without data are left out of a mixture.
    """
    found = seqio.get_mixture_or_task(name)
    if isinstance(found, seqio.Task):
        return _with_vocabulary(found, vocabulary)
    rates = [
        (_with_vocabulary(task, vocabulary), functools.partial(_rate, found, task))
        for task in seqio.get_subtasks(found)
        if not isinstance(_splits(task), str)
    ]
    return seqio.Mixture(name, rates, sample_fn=found._sample_fn)


def find_mixture(name: str, vocabulary: Vocabulary, module: str | None = None) -> Mixture | None:
    """Returns the SeqIO task or mixture that is registered as `name`, or None if there is none."""
    known = [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=_SIMILAR)
        if near and name not in list_mixtures():
            raise UserError(
                f"{module} registers no mixture or task {name!r} with SeqIO.{suggestion(near)}"
            )
        return None
    found = seqio.get_mixture_or_task(name)
    tasks: list[Rated] = []
    for task in seqio.get_subtasks(found):
        made, rate = _as_task(task, vocabulary, module), None
        if isinstance(found, seqio.Mixture) and made.absent is None:
            rate = _rate(found, task)
        tasks.append((made, rate))
    return Mixture(name, tuple(tasks))


def _check_records(task: SeqioTask) -> None:
    """Raises UserError if a task lacks features or cannot be written to a token cache."""
    features = task.source.output_features
    for name in ("inputs", "targets"):
        if name not in features:
            raise UserError(
                f"the SeqIO task {task.name} has no feature {name!r}, only {', '.join(features)}; "
                "expected inputs and targets"
            )
    steps = list(task.source._preprocessor_constructor_args)
    cached = [i for i, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder)]
    late = [
        _step_name(step)
        for index, step in enumerate(steps)
        if _step_name(step) not in _APPEND_EOS
        and ((cached and index > cached[0]) or _needs_lengths(step))
    ]
    if late:
        raise UserError(
            f"the SeqIO task {task.name} cannot be written to a token cache, because "
            f"{', '.join(late)} must run when examples are loaded (after CacheDatasetPlaceholder, "
            "or with the argument sequence_length); train with data.loader='seqio'"
        )


class Scorer:
    """Scores predicted texts with the `metric_fns` of a task, as SeqIO's evaluator does.

    Raises UserError if all metrics need the model's scores for the targets instead of predicted
    texts.
    """

    def __init__(self, task: SeqioTask, split: str, lengths: Mapping[str, int], limit: int | None):
        """Initializes the scorer, which reads up to `limit` examples with untruncated targets."""
        if not task.source.predict_metric_fns:
            raise UserError(
                f"the SeqIO task {task.name} cannot be evaluated: its metric_fns "
                f"({', '.join(map(_step_name, task.source.metric_fns))}) need the model's scores; "
                "expected at least one function of (targets, predictions)"
            )
        self._task = task.source
        self._lengths = {**lengths, "targets": _WHOLE}
        self._split = split
        self._limit = limit

    @functools.cached_property
    def records(self) -> list[dict[str, Any]]:
        """The examples with all features, in SeqIO's order."""
        made = self._task.get_dataset(self._lengths, self._split, shuffle=False, seed=0)
        return list(itertools.islice(made.as_numpy_iterator(), self._limit))

    @property
    def examples(self) -> list[Example]:
        """The inputs and targets of the examples, as token ids."""
        return [Example(record["inputs"], record["targets"]) for record in self.records]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the scores."""
        return tuple(self([""] * len(self.records)))

    def __call__(self, predictions: Sequence[str]) -> dict[str, float]:
        """Returns a dict mapping metric names to scores, given the predicted text of each example.

        Values that are not numbers are left out. Raises UserError if the number of predictions
        differs from the number of examples, or if a function of the task fails.
        """
        if len(predictions) != len(self.records):
            raise UserError(
                f"the SeqIO task {self._task.name} has {len(self.records)} examples in its split "
                f"{self._split!r}, but there are {len(predictions)} predictions; if the "
                "examples were read from a token cache, write the task again to another directory"
            )
        targets, found = [], []
        for text, record in zip(predictions, self.records, strict=True):
            postprocess = functools.partial(self._task.postprocess_fn, example=record)
            with _named(self._task, "postprocess_fn"):
                targets.append(postprocess(self._target(record), is_target=True))
                found.append(postprocess(text, is_target=False))
        scores: dict[str, float] = {}
        for function in self._task.predict_metric_fns:
            with _named(self._task, _step_name(function)), warnings.catch_warnings():
                # SciPy and scikit-learn warn if all predictions are equal and a correlation is NaN.
                warnings.simplefilter("ignore")
                values = function(targets, found)
            for name, value in values.items():
                # Values that are not numbers, such as `seqio.metrics.Text`, are not scores.
                with contextlib.suppress(TypeError, ValueError):
                    scores[name] = float(getattr(value, "value", value))
        return scores

    def _target(self, record: Mapping[str, Any]) -> str:
        """Returns the text of the targets if the example contains it, or else the decoded ids."""
        text = record.get("targets_pretokenized")
        if text is None:
            vocabulary = self._task.output_features["targets"].vocabulary
            return str(vocabulary.decode([int(i) for i in record["targets"]]))
        return text.decode() if isinstance(text, bytes) else str(text)


def _as_task(task: seqio.Task, vocabulary: Vocabulary, module: str | None) -> SeqioTask:
    made = _with_vocabulary(task, vocabulary)
    subset = f"{task.name} ({vocabulary.fingerprint()})"
    features, splits = task.output_features, _splits(task)
    return SeqioTask(
        name=task.name,
        dataset=datasets.SEQIO,
        subset=subset,
        splits={} if isinstance(splits, str) else {split: split for split in splits},
        inputs_add_eos="inputs" in features and features["inputs"].add_eos,
        targets_add_eos=features["targets"].add_eos,
        source=made,
        module=module,
        run_vocabulary=vocabulary,
        fingerprint=fingerprint(task),
        absent=splits if isinstance(splits, str) else None,
    )


def fingerprint(provider: seqio.Task | seqio.Mixture) -> str:
    """Returns a hash of the sources, preprocessors and rates of a task or mixture."""
    if isinstance(provider, seqio.Mixture):
        parts = [f"{fingerprint(t)} {_rate(provider, t)}" for t in seqio.get_subtasks(provider)]
    else:
        ends = {name: feature.add_eos for name, feature in provider.output_features.items()}
        steps = map(definition, provider._preprocessor_constructor_args)
        parts = [provider.name, type(provider.source).__name__, str(ends), *steps]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _found_in(module: str | None, name: str, vocabulary: Vocabulary) -> SeqioTask:
    """Restores a task from the values that `SeqioTask.__reduce__` pickled."""
    if module is not None:
        import_module(module)
    return _as_task(seqio.TaskRegistry.get(name), vocabulary, module)


def _with_vocabulary(task: seqio.Task, vocabulary: Vocabulary) -> seqio.Task:
    same = seqio_vocabulary(vocabulary)
    text = (seqio.SentencePieceVocabulary, seqio.ByteVocabulary)
    features = {
        name: dataclasses.replace(feature, vocabulary=same)
        if isinstance(feature.vocabulary, text)
        else feature
        for name, feature in task.output_features.items()
    }
    return task.replace(output_features=features)


def _splits(task: seqio.Task) -> tuple[str, ...] | str:
    """Returns the splits of a task, or the reason why it has no data."""
    try:
        return tuple(task.splits)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if isinstance(task.source, seqio.TfdsDataSource):
            name = task.source.tfds_dataset.name
            return (
                f"TFDS has no data for {name} ({reason}). Set TFDS_DATA_DIR to a directory with "
                f"this data, or run tensorflow_datasets.builder({name!r}).download_and_prepare()"
            )
        return f"SeqIO cannot read its splits: {reason}"


@contextlib.contextmanager
def _named(task: seqio.Task, part: str) -> Iterator[None]:
    """Converts any error in the block to a UserError that names the task and the failed part."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip()
        raise UserError(f"the SeqIO task {task.name}: its {part} failed: {reason}") from error


def _rate(mixture: seqio.Mixture, task: seqio.Task, _: Any = None) -> float:
    """Returns the rate of a task in a mixture.

    Returns 0 if the task has no training data and its rate cannot be computed.
    """
    try:
        with _named(task, "rate"):
            return float(mixture.get_rate(task))
    except UserError:
        if "train" in task.splits:
            raise
        return 0.0  # T5's `rate_num_examples` needs training data.


def _step_name(step: Any) -> str:
    while isinstance(step, functools.partial):
        step = step.func
    return str(getattr(step, "__name__", type(step).__name__))


def _needs_lengths(step: Any) -> bool:
    try:
        parameters = inspect.signature(step).parameters
    except (TypeError, ValueError):
        return False
    # A `functools.partial` that already sets `sequence_length` does not need it as an argument.
    given = step.keywords if isinstance(step, functools.partial) else {}
    return "sequence_length" in parameters and "sequence_length" not in given
