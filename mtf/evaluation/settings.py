"""Settings of evaluation. Imports no jax and no numpy."""

from __future__ import annotations

import dataclasses

from mtf.decoding.settings import DecodingConfig
from mtf.errors import UserError
from mtf.text.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class InferEvalConfig:
    """Evaluation during training on what the model writes (T5X: `infer_eval`).

    Held-out inputs are decoded and compared with their targets. Data of a mixture are evaluated
    task by task, on `data.eval_split`; other data as `held_out`.

    Attributes:
      period: steps between evaluations; the last step is evaluated too.
      num_examples: of each task, always the same ones; None: all.
      metrics: names, those of `mtf.evaluation.metrics`; None: those of each task's own that can be
        computed of texts, and accuracy where there is none.
      tasks: names of tasks of the mixture; None: all, but those whose choices are ranked.
      decoding: how inputs are decoded; None: T5X's beam search with one beam, as far as targets of
        training are long.
    """

    period: int = 1000
    num_examples: int | None = 100
    metrics: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    decoding: DecodingConfig | None = None

    def __post_init__(self) -> None:
        if self.period < 1:
            raise UserError(f"period must be at least 1, not {self.period}.")
        if self.num_examples is not None and self.num_examples < 1:
            raise UserError(f"num_examples must be at least 1 or None, not {self.num_examples}.")
        for field in ("metrics", "tasks"):
            if getattr(self, field) == ():
                raise UserError(f"{field} is empty; expected a name or more, or None.")
        if self.decoding is not None and self.decoding.num_return != 1:
            raise UserError(
                "decoding.num_return must be 1: one prediction is compared with each target, not "
                f"{self.decoding.num_return}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankFilesConfig:
    """One's own examples with answer choices, to be ranked.

    A line of a `.jsonl` file is `{"inputs": text, "choices": [text, …], "label": number}`, the
    label counted from 0. Examples may have different numbers of choices. Each file is a task of
    its own, named like the file.

    Attributes:
      files: a path or pattern, or several.
      vocabulary: None: that of the checkpoint.
      task_feature_lengths: tokens of inputs and of each choice; what is longer is cut off and
        counted.
      inputs_add_eos: whether end of sequence is put behind inputs; None: as the run was trained
        that wrote the checkpoint, and without a run none, as T0's.
    """

    files: str | tuple[str, ...]
    vocabulary: Vocabulary | None = None
    task_feature_lengths: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"inputs": 1024, "targets": 256}
    )
    inputs_add_eos: bool | None = None

    def __post_init__(self) -> None:
        if not self.files:
            raise UserError("data.files: no file is named; expected a path or pattern, or several")
        for name in ("inputs", "targets"):
            length = self.task_feature_lengths.get(name)
            if length is None or length < 1:
                raise UserError(
                    f"data.task_feature_lengths: expected the lengths of 'inputs' and 'targets', "
                    f"at least 1 each, not {self.task_feature_lengths}"
                )

    @property
    def patterns(self) -> tuple[str, ...]:
        """The paths and patterns in `files`."""
        return (self.files,) if isinstance(self.files, str) else self.files
