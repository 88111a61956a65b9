"""Registers custom tasks and mixtures by name; docs/tasks.md contains examples.

If `data.module='my.tasks'` is set, the module is imported before a mixture is looked up.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mtf.base.errors import UserError, did_you_mean
from mtf.data.sources.datasets import Part, Source
from mtf.data.sources.records import CUSTOM, RecordSource
from mtf.data.tasks.metrics import METRICS
from mtf.data.tasks.objectives import Objective
from mtf.data.tasks.task import SAME_SPLITS, SCORE_EVAL, Task, VocabularyName, rank_examples

# {"inputs": text, "targets": text}, a sequence of such dicts, or None to drop the record. With an
# objective, {"targets": text}.
Texts: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
# The argument is a record. Users annotate it as dict[str, str], dict[str, Any] or Mapping.
ToText: TypeAlias = Callable[[Any], Texts]


@dataclass(frozen=True)
class HubSource:
    """A dataset on the Hugging Face hub or in the local mirror (`data_dir` or MTF_DATA_DIR).

    Attributes:
      dataset: name of the dataset, such as `glue` or `allenai/sciq`.
      subset: configuration of the dataset; None if the dataset has no configurations.
      splits: dict mapping each split of the task to the name of the dataset's split, which may
        not exist.
    """

    dataset: str
    subset: str | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: dict(SAME_SPLITS))


@dataclass(frozen=True, kw_only=True)
class RowTask(Task):
    """A task that applies a function to each record of a dataset to make inputs and targets.

    Attributes:
      to_text: function that turns a record into `Texts`.
      metric_names: names of the metrics, as in T5.
      answer_choices: all possible targets; None if targets are free text.
      module: name of the module that registers the task; None if no importable module does.
      held_out: fraction of the dataset's split that is the split `validation`, if that split is
        divided; splits with the same name in the dataset have the rest.
    """

    is_custom = True

    to_text: ToText
    metric_names: tuple[str, ...] = ()
    answer_choices: tuple[str, ...] | None = None
    module: str | None = None
    held_out: float | None = None

    def check_metrics(self) -> None:
        """Raises UserError if a metric compares classes, but there are no answer choices."""
        for name in self.metric_names if self.answer_choices is None else ():
            if name in METRICS and METRICS[name].compares == "class":
                raise UserError(
                    f"task {self.name}: the metric {name} compares classes; set answer_choices to "
                    "all possible targets (for a recipe's files or dataset: "
                    "--set \"data.task.answer_choices=('no', 'yes')\")"
                )

    @classmethod
    def of_source(
        cls, name: str, source: HubSource | RecordSource, to_text: ToText, **fields: Any
    ) -> RowTask:
        """Returns a task with the records and the splits of `source`."""
        if isinstance(source, HubSource):
            fields |= {"dataset": source.dataset, "subset": source.subset}
        else:
            fields |= {"dataset": source.kind, "subset": name, "records": source}
        return cls(name=name, splits=dict(source.splits), to_text=to_text, **fields)

    def __reduce__(self) -> Any:
        """Pickles a registered task by name because `to_text` may not be picklable."""
        if self.module is None:
            return super().__reduce__()
        return _registered_in, (self.module, self.name)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the data source, the source code of `to_text` and the answer choices."""
        fields = [definition(self.to_text), self.kind, self.answer_choices]
        if self.records is not None and self.records.kind == CUSTOM:
            others = {name: each for name, each in vars(self.records).items() if name != "splits"}
            fields += [definition(type(self.records).records), str(sorted(others.items()))]
        if self.held_out is not None:
            fields.append(f"held out {self.held_out}")
        return self.hash_of(*fields)

    @property
    def metrics(self) -> tuple[str, ...]:
        """T5's names for the metrics, or `rank_classification` for ranked tasks."""
        return ("rank_classification",) if self.kind == "rank" else self.metric_names

    @property
    def text_features(self) -> tuple[str, ...]:
        """The keys of the dicts that `to_text` returns."""
        return ("inputs", "targets") if self.objective is None else ("targets",)

    @property
    def label_classes(self) -> tuple[str, ...] | None:
        """The answer choices, or None if there are none."""
        return self.answer_choices

    def source_of(self, split: str) -> Source:
        """See `Task`; the source is a part of a split that is divided."""
        source = super().source_of(split)
        if self.held_out is None or source.split != self.splits["validation"]:
            return source
        return source._replace(part=Part(self.held_out, split == "validation"))

    def row_examples(
        self, row: Mapping[str, Any], index: int, split: str, seed: int = 0
    ) -> list[dict[str, Any]]:
        """Returns the examples that `to_text` makes from a record; see `Task`."""
        where = f"record {index} of {split}"
        try:
            made = self.to_text(row)
        except UserError as error:
            raise UserError(f"task {self.name}, {where}: {error}") from error
        except Exception as error:
            raise UserError(
                f"task {self.name}: {_name(self.to_text)} fails on {where}: "
                f"{type(error).__name__}: {error}{_location(error)}; the record's columns are "
                f"{', '.join(row)}"
            ) from error
        if made is None:
            return []
        several = [made] if isinstance(made, Mapping) else made
        if not isinstance(several, Sequence) or isinstance(several, str):
            raise self._refused(where, f"a {type(made).__name__}")
        texts = [self._checked(text, where) for text in several]
        if self.kind != "rank":
            return texts
        if len(texts) > 1:
            raise self._refused(where, f"{len(texts)} examples, but ranking needs one")
        choices = self.answer_choices or ()
        return [
            each for text in texts for each in rank_examples(**text, choices=choices, number=index)
        ]

    def _hashed_splits(self) -> list[tuple[str, str]]:
        """Returns (split, name of the dataset's split or file) wherever the two names differ."""
        named = ((split, os.path.basename(name)) for split, name in self.splits.items())
        return sorted((split, name) for split, name in named if split != name)

    def _checked(self, text: object, where: str) -> dict[str, Any]:
        """Returns the inputs and targets in `text`; raises UserError if they are invalid."""
        if not isinstance(text, Mapping):
            raise self._refused(where, f"a {type(text).__name__}")
        for name in self.text_features:
            if name not in text:
                found = ", ".join(map(repr, text)) or "nothing"
                raise self._refused(where, f"no {name!r} (only {found})")
            if not isinstance(text[name], str):
                raise self._refused(where, f"{name!r} as {type(text[name]).__name__}")
            if not text[name].strip():
                raise self._refused(where, f"empty {name!r}")
        if self.answer_choices is not None and text["targets"] not in self.answer_choices:
            raise UserError(
                f"task {self.name}: for {where}, {_name(self.to_text)} returned targets "
                f"{text['targets']!r}; expected one of answer_choices "
                f"({', '.join(map(repr, self.answer_choices))})"
            )
        return {name: text[name] for name in self.text_features}

    def _refused(self, where: str, what: str) -> UserError:
        name = _name(self.to_text)
        expected = ", ".join(f"{feature!r}: text" for feature in self.text_features)
        return UserError(
            f"task {self.name}: {name} returned {what} for {where}; expected {{{expected}}}, "
            "a list of such dicts, or None to drop the record"
        )


@dataclass
class _Registry:
    tasks: dict[str, RowTask] = field(default_factory=dict)
    mixtures: dict[str, dict[str, float | None]] = field(default_factory=dict)
    # Name of a task or mixture → name of the module that registered it, shown in messages.
    modules: dict[str, str] = field(default_factory=dict)
    importing: list[str] = field(default_factory=list)


_REGISTRY = _Registry()


def register(
    name: str,
    source: HubSource | RecordSource,
    to_text: ToText,
    *,
    objective: Objective | None = None,
    metrics: Sequence[str] = (),
    answer_choices: Sequence[str] | None = None,
    inputs_add_eos: bool = True,
    vocabulary: VocabularyName = "t5",
) -> None:
    """Registers a task, like SeqIO's `TaskRegistry.add`.

    Args:
      name: name of the task, which can be used wherever a mixture or task is expected.
      source: source of the records: a dataset, files (`FileSource`) or a custom source.
      to_text: function that takes a record (a dict mapping column names to values) and returns a
        dict with the keys inputs and targets, a list of such dicts, or None to drop the record.
      objective: objective that makes the examples from documents. In this case, the dicts have only
        the key targets, whose value is a document.
      metrics: names of metrics in `mtf.data.tasks.metrics`, or dotted names of functions such as
        `my_parts.my_metric`.
      answer_choices: all possible targets. They are the classes for metrics such as `f1` and the
        choices that the task `NAME_score_eval` ranks.
      inputs_add_eos: whether inputs end with EOS, as in T5; targets always end with EOS.
      vocabulary: vocabulary that `mtf.cache` uses by default.

    Raises UserError if the name is invalid or already registered.
    """
    if not isinstance(source, HubSource | RecordSource) or not isinstance(source.splits, Mapping):
        raise UserError(
            f"task {name}: {source!r} is not a source with a dict of splits; expected, for "
            "example, FileSource({'train': 'train.csv'}) or HubSource('glue', 'sst2')"
        )
    if not callable(to_text):
        raise UserError(f"task {name}: to_text is {to_text!r}; expected a function of a record")
    metric_names = _names("metrics", metrics)
    choices = None if answer_choices is None else _names("answer_choices", answer_choices)
    module = _claim(name)
    _REGISTRY.tasks[name] = RowTask.of_source(
        name,
        source,
        to_text,
        kind="generate" if objective is None else "documents",
        objective=objective,
        metric_names=metric_names,
        answer_choices=choices,
        inputs_add_eos=inputs_add_eos,
        vocabulary=vocabulary,
        module=None if module == "__main__" else module,
    )


def register_mixture(
    name: str, tasks: Mapping[str, float | None] | Iterable[str], *, rate: float | None = None
) -> None:
    """Registers a mixture, like SeqIO's `MixtureRegistry.add`.

    Args:
      name: name of the mixture.
      tasks: names of tasks, or a dict mapping them to rates. The rate None stands for the number of
        the task's examples, but at most 500,000. The name of another mixture is allowed with the
        rate None; the tasks of that mixture keep their rates.
      rate: rate of all tasks if `tasks` does not contain rates.

    Raises UserError if the name is invalid or already registered, or if a rate is not positive.
    """
    named = tasks if isinstance(tasks, Mapping) else dict.fromkeys(_names("tasks", tasks), rate)
    rates: dict[str, float | None] = dict(named)
    if not rates:
        raise UserError(f"mixture {name}: it has no tasks; expected at least one")
    for task, value in rates.items():
        is_number = isinstance(value, int | float)
        if value is not None and not (is_number and 0 < value < float("inf")):
            raise UserError(f"mixture {name}: the rate of {task} must be positive, not {value!r}")
    _claim(name)
    _REGISTRY.mixtures[name] = rates


def registered_tasks() -> dict[str, RowTask]:
    """Returns all registered tasks by name, and ranked versions of those with answer choices."""
    ranked = {
        f"{name}{SCORE_EVAL}": task.score_eval()
        for name, task in _REGISTRY.tasks.items()
        if task.answer_choices is not None
    }
    return {**_REGISTRY.tasks, **ranked}


def registered_mixtures() -> dict[str, dict[str, float | None]]:
    """Returns the registered mixtures by name, each as a dict mapping task names to rates."""
    return dict(_REGISTRY.mixtures)


def is_registered(name: str) -> bool:
    """Returns whether a task or a mixture is registered under this name."""
    return name in registered_tasks() or name in _REGISTRY.mixtures


def import_module(name: str, setting: str = "data.module") -> None:
    """Imports a module that registers tasks or mixtures, unless it is already imported.

    Raises a UserError that names `setting` if the module does not exist or its import fails.
    """
    if name in sys.modules and name not in _REGISTRY.importing:
        return
    # `lookup` imports Fiddle, which training does not need.
    from mtf.config import lookup

    if name.endswith(".py") or "/" in name:
        hint = name.removesuffix(".py").strip("./").replace("/", ".")
        raise UserError(f"{setting}: {name} is a file; expected the name of a module: {hint}")
    _REGISTRY.importing.append(name)
    try:
        lookup.import_user_module(name, setting)
    finally:
        _REGISTRY.importing.pop()


def definition(function: Callable[..., Any]) -> str:
    """Returns a text that identifies a function.

    If the function has an attribute `definition`, the text is its value. Otherwise, the text
    contains the source code of the function and of the functions in the same package that it uses,
    and the constants that these functions use.
    """
    # Memory addresses are removed because they differ between processes.
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(_definitions(function, set())))


def _definitions(function: Any, seen: set[Any]) -> Iterator[str]:
    if isinstance(function, functools.partial):
        yield f"{function.args} {sorted(function.keywords.items())}"
        function = function.func
    text = getattr(function, "definition", None)
    if isinstance(text, str):
        yield text
        return
    function = _unwrapped(function)
    try:
        yield inspect.getsource(function)
        used = inspect.getclosurevars(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        yield repr(function) if code is None else f"{code.co_code!r} {code.co_consts}"
        return
    seen.add(function)
    package = _package(function)
    for name, value in sorted({**used.globals, **used.nonlocals}.items()):
        if _is_constant(value):
            yield f"{name} = {value!r}"
        elif inspect.isfunction(value) and value not in seen and _package(value) == package:
            yield from _definitions(value, seen)


def _unwrapped(function: Any) -> Any:
    """Removes decorators of other packages (such as gin's) because their state may change."""
    while (
        inspect.isfunction(function)
        and hasattr(function, "__wrapped__")
        and function.__globals__["__name__"].partition(".")[0] != _package(function)
    ):
        function = function.__wrapped__
    return function


def _package(function: Any) -> str:
    return str(function.__module__).partition(".")[0]


def _is_constant(value: Any) -> bool:
    if isinstance(value, Mapping):
        return _is_constant([*value.keys(), *value.values()])
    if isinstance(value, tuple | list):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, str | bytes | int | float)


def _registered_in(module: str, name: str) -> RowTask:
    """Returns a registered task; called to unpickle a `RowTask`, often in another process."""
    import_module(module)
    tasks = registered_tasks()
    if name not in tasks:
        raise UserError(f"{module} does not register the task {name}.{did_you_mean(name, tasks)}")
    return tasks[name]


def _claim(name: str) -> str:
    """Reserves a name for the module that registers it and returns the name of this module.

    Raises UserError if the name is invalid or already registered.
    """
    caller = sys._getframe(2).f_globals.get("__name__", "__main__")
    module = _REGISTRY.importing[-1] if _REGISTRY.importing else caller
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.+-]*", name):
        raise UserError(f"{name!r} is not a valid name; use only letters, digits, and . _ + -")
    if name in _REGISTRY.modules:
        by = dict.fromkeys((_REGISTRY.modules[name], module))
        raise UserError(
            f"{name} is registered twice, by {' and by '.join(by)}; give one of them another name"
        )
    _REGISTRY.modules[name] = module
    return module


def _names(what: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise UserError(f"{what} is the string {names!r}; expected a list: [{names!r}]")
    return tuple(names)


def _name(function: ToText) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _location(error: Exception) -> str:
    """Returns where a custom function failed, as " (FILE:LINE)", or "" if that is unknown."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
