"""The evaluation job: rank classification. Imports no jax until it runs."""

from __future__ import annotations

import dataclasses

from mtf.checkpoints.config import RestoreCheckpointConfig
from mtf.data.config import TaskMixture
from mtf.errors import UserError
from mtf.models.config import EncoderDecoderModel
from mtf.partitioning.config import PjitPartitioner


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Ranks the answer choices of every example by their likelihood, as T0's `score_eval`.

    Attributes:
      model: the network.
      data: a mixture of ranked tasks (`*_score_eval`); its `eval_split` is evaluated.
      checkpoint: what is evaluated; it must be set.
      batch_size: sequences that are scored at a time.
      partitioner: how model and batch are spread over devices.
      output_dir: where tables and figures go; None: beside the checkpoint.
    """

    model: EncoderDecoderModel
    data: TaskMixture
    checkpoint: RestoreCheckpointConfig | None
    batch_size: int
    partitioner: PjitPartitioner = PjitPartitioner()
    output_dir: str | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size must be at least 1, not {self.batch_size}.")

    def run(self) -> None:
        """Not there yet: the config can be shown, checked and changed, not run.

        Raises:
          UserError: always.
        """
        raise UserError(
            "rank evaluation cannot be run by this version; its recipe can be shown and checked "
            "(--print), and its tasks looked at (python -m mtf.data)"
        )

    def describe(self) -> str:
        """What would be evaluated."""
        return (
            f"mixture     {self.data.mixture_or_task_name}, split {self.data.eval_split}\n"
            f"checkpoint  {self.checkpoint.path if self.checkpoint else 'none'}\n"
            f"batch       {self.batch_size} sequences"
        )
