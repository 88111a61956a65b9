"""Settings of evaluation."""

from __future__ import annotations

import dataclasses

from mtf.checks import AT_LEAST_ONE, check_fields
from mtf.data.settings import TaskMixtureConfig
from mtf.decoding.settings import DecodingConfig
from mtf.errors import UserError
from mtf.text.vocabularies import Vocabulary

# Folder of the predictions of ranked tasks, until all tasks are done and they are joined.
UNFINISHED = "tmp-evaluation"


@dataclasses.dataclass(frozen=True)
class InferEvalConfig:
    """Evaluation of decoded text during training (T5X: `infer_eval`).

    Held-out inputs are decoded and compared with their targets: for a mixture, those of each task
    in `data.eval_split`; for other data, as one task `held_out`.

    Attributes:
      period: number of steps between evaluations; the last step is also evaluated.
      num_examples: number of examples of each task, the same ones every time; None: all.
      metrics: names from `mtf.evaluation.metrics`, or of functions (`my_parts.my_metric`); None:
        the task's metrics that compare texts or classes, or accuracy if there is none.
      tasks: names of tasks of the mixture; None: all tasks with generated targets.
      decoding: decoding settings; None: T5X's beam search with one beam, up to the length of
        targets in training.
    """

    period: int = 1000
    num_examples: int | None = 100
    metrics: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    decoding: DecodingConfig | None = None

    def __post_init__(self) -> None:
        check_fields(self, AT_LEAST_ONE, "period")
        check_fields(self, AT_LEAST_ONE, "num_examples", optional=True)
        for field in ("metrics", "tasks"):
            if getattr(self, field) == ():
                raise UserError(f"{field} is empty; expected at least one name, or None.")
        check_one_prediction(self.decoding)


def check_one_prediction(decoding: DecodingConfig | None) -> None:
    """Raises UserError if the decoder returns several predictions per example."""
    if decoding is not None and decoding.num_return != 1:
        raise UserError(
            f"decoding.num_return must be 1, not {decoding.num_return}, because each target is "
            "compared with one prediction."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankFilesConfig:
    """Files of examples with answer choices to rank.

    A line of a `.jsonl` file is `{"inputs": text, "choices": [text, …], "label": number}`, with the
    label counted from 0. Examples can have different numbers of choices. Each file is a task.

    Attributes:
      files: a path or pattern, or several.
      vocabulary: the vocabulary; None: that of the checkpoint.
      task_feature_lengths: maximum number of tokens of inputs and of each choice; longer ones are
        truncated and counted.
      inputs_add_eos: whether EOS is appended to inputs; None: as the run that wrote the checkpoint
        or the export says, otherwise False, as for T0.
    """

    files: str | tuple[str, ...]
    vocabulary: Vocabulary | None = None
    task_feature_lengths: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"inputs": 1024, "targets": 256}
    )
    inputs_add_eos: bool | None = None

    def __post_init__(self) -> None:
        if not self.files:
            raise UserError("data.files is empty; expected at least one path or pattern")
        for name in ("inputs", "targets"):
            length = self.task_feature_lengths.get(name)
            if length is None or length < 1:
                found = "missing" if length is None else length
                raise UserError(
                    "data.task_feature_lengths must have 'inputs' and 'targets', each at least 1; "
                    f"{name!r} is {found}"
                )

    @property
    def patterns(self) -> tuple[str, ...]:
        """The paths and patterns in `files`."""
        return (self.files,) if isinstance(self.files, str) else self.files


def data_name(data: TaskMixtureConfig | RankFilesConfig) -> str:
    """Returns the name of a mixture or task, or the paths of files."""
    if isinstance(data, RankFilesConfig):
        return ", ".join(data.patterns)
    return data.mixture_or_task_name
