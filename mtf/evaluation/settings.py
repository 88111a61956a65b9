"""Settings for evaluation."""

from __future__ import annotations

import dataclasses

from mtf.base.checks import AT_LEAST_ONE, check_fields
from mtf.base.errors import UserError
from mtf.data.settings import TaskMixtureConfig
from mtf.data.text.vocabularies import Vocabulary
from mtf.inference.decoding.settings import DecodingConfig


@dataclasses.dataclass(frozen=True)
class InferEvalConfig:
    """Settings for evaluating decoded text during training (T5X: `infer_eval`).

    In an evaluation, held-out inputs are decoded, and the results are compared with the targets. In
    a mixture, the held-out examples of a task are those in `data.eval_split`. In other data, all
    held-out examples form one task named `held_out`.

    Attributes:
      period: number of steps between evaluations; the last step is also evaluated.
      num_examples: number of examples per task; every evaluation uses the same examples. None for
        all examples.
      metrics: names of metrics in `mtf.data.tasks.metrics` or of custom functions
        (`my_parts.my_metric`); None for those of the task's metrics that compare texts or classes,
        or for accuracy if there are none.
      tasks: names of tasks in the mixture; None for all tasks with generated targets.
      decoding: decoding settings; None for beam search with one beam, as in T5X, up to the maximum
        length of targets in training.
    """

    period: int = 1000
    num_examples: int | None = 100
    metrics: tuple[str, ...] | None = dataclasses.field(
        default=None, metadata={"imports": "functions"}
    )
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
    """Raises UserError if `decoding` returns more than one prediction per example."""
    if decoding is not None and decoding.num_return != 1:
        raise UserError(
            f"decoding.num_return must be 1, not {decoding.num_return}, because each target is "
            "compared with one prediction."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankFilesConfig:
    """Files of examples with answer choices to rank.

    Each line of a `.jsonl` file is `{"inputs": text, "choices": [text, …], "label": number}`, where
    the label is the index, from 0, of the correct choice. Examples can have different numbers of
    choices. Each file is evaluated as a task.

    Attributes:
      files: a path or pattern, or a tuple of paths and patterns.
      vocabulary: the vocabulary; None for the checkpoint's vocabulary.
      task_feature_lengths: maximum number of tokens in the inputs and in each choice ("targets");
        longer sequences are truncated and counted.
      inputs_add_eos: whether EOS is appended to inputs; None for the setting recorded by the run or
        export that wrote the checkpoint or, if there is no record, for False, as in T0.
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
        if any(self.task_feature_lengths.get(name, 0) < 1 for name in ("inputs", "targets")):
            raise UserError(
                "data.task_feature_lengths must set 'inputs' and 'targets' to at least 1, not "
                f"{self.task_feature_lengths}"
            )

    @property
    def patterns(self) -> tuple[str, ...]:
        """The paths and patterns in `files`."""
        return (self.files,) if isinstance(self.files, str) else self.files


def data_name(data: TaskMixtureConfig | RankFilesConfig) -> str:
    """Returns the name of the mixture or task, or the paths and patterns of the files."""
    if isinstance(data, RankFilesConfig):
        return ", ".join(data.patterns)
    return data.mixture_or_task_name
