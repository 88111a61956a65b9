"""The evaluation job: rank classification. Imports no jax until it runs."""

from __future__ import annotations

import dataclasses
from typing import Literal

from mtf.data.settings import TaskMixtureConfig
from mtf.errors import UserError
from mtf.evaluation.settings import RankFilesConfig
from mtf.jobs.results import EvaluateResult
from mtf.partitioning.settings import PartitionerConfig


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Ranks the answer choices of every example by their likelihood, as T0's `score_eval`.

    The network is the checkpoint's. What is written, and what the numbers are: docs/evaluation.md.

    Attributes:
      checkpoint: what is evaluated: a run directory (its latest checkpoint), a checkpoint of ours
        or of T5X, or a Hugging Face directory. It must be set.
      data: a mixture of ranked tasks (`*_score_eval`), whose `eval_split` is evaluated, from the
        cache in `cache_dir` or, without one, from its datasets; or files of one's own.
      batch_size: size of a batch: as many tokens of inputs as so many of the longest examples.
      dtype: of parameters and activations. In float32 predictions do not depend on the batch size
        or the devices.
      partitioner: how model and batch are spread over devices.
      output_dir: where tables and figures go, which must not have results yet; None:
        `runs/evaluate-TIME`.
    """

    checkpoint: str | None
    data: TaskMixtureConfig | RankFilesConfig
    batch_size: int = 32
    dtype: Literal["float32", "bfloat16"] = "float32"
    partitioner: PartitionerConfig = PartitionerConfig()
    output_dir: str | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size must be at least 1, not {self.batch_size}.")
        if self.dtype not in ("float32", "bfloat16"):
            raise UserError(f"dtype must be 'float32' or 'bfloat16', not {self.dtype!r}.")

    def run(self) -> EvaluateResult:
        """Evaluates; writes tables, scores and a figure, and prints the summary.

        Returns:
          Every task's metrics, and where they were written.

        Raises:
          UserError: a value has the wrong type, the input cannot be used, or a score is not a
            number; nothing has been written.
        """
        from mtf.config import as_checked

        job = as_checked(self)
        from mtf.jobs.evaluate_run import run

        return run(job)

    def describe(self) -> str:
        """Returns what would be evaluated: tasks with and without data, and the model's size.

        Raises:
          UserError: the input cannot be used.
        """
        from mtf.config import as_checked

        job = as_checked(self)
        from mtf.jobs.evaluate_run import describe

        return describe(job)
