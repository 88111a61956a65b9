"""The inference job. Imports no jax until it runs."""

from __future__ import annotations

import dataclasses
from typing import Literal

from mtf.decoding.settings import DecodingConfig
from mtf.errors import UserError
from mtf.jobs.results import InferResult
from mtf.partitioning.settings import PartitionerConfig

MODES = ("predict", "score", "predict_with_aux")


@dataclasses.dataclass(frozen=True)
class Infer:
    """Predicts or scores the targets of files or tasks (T5X: `infer.infer`).

    A run that was killed goes on where it was when it is started again, and ends with the same
    bytes. The lines of the result are those of the input, in order.

    Attributes:
      checkpoint: a run directory, a checkpoint of ours or of T5X, or a Hugging Face directory; it
        must be set.
      files: paths or patterns of `.txt`, `.jsonl` or `.tsv` files (see docs/inference.md). This or
        the next must be set.
      mixture_or_task_name: a mixture, or one task. Of a ranked task (`*_score_eval`) every answer
        choice is scored, but an input is decoded once.
      mode: "predict" decodes targets, "score" gives the log-likelihood of the given ones,
        "predict_with_aux" decodes, and gives the scores of what it decoded.
      output_dir: gets `{name}-{mode}.jsonl-00000-of-00001` for each file or task; None:
        `inference/` in the run directory; for other checkpoints `inference/NAME` in this folder.
      split: of the tasks.
      step: which checkpoint of several; None: the latest.
      vocabulary: "t5", "mt5", "byt5" or a SentencePiece model file; None: the checkpoint's own.
      dtype: of parameters and activations.
      decoding: how targets are decoded; the default is T5X's, beam search with one beam. It is not
        greedy decoding: see docs/inference.md.
      task_feature_lengths: tokens of inputs, and of the targets that are scored; what is longer is
        cut off and counted.
      inputs_add_eos: whether end of sequence is put behind inputs; None: as the task says, and
        for files as in the training run (T5's way where none is known).
      batch_size: examples at a time.
      checkpoint_period: batches between two parts that are written; a kill loses one at most.
      shard_id: which part of the examples this process takes, from 0, where several jobs divide
        them; the last one to finish joins all.
      num_shards: how many there are.
      data_dir: a local mirror of the tasks' datasets; None: MTF_DATA_DIR, else the hub.
      templates: promptsource's; None: MTF_PROMPTS, else those that `mtf prompts fetch` got.
      partitioner: how model and batch are spread over devices.
    """

    checkpoint: str | None = None
    files: str | tuple[str, ...] | None = None
    mixture_or_task_name: str | None = None
    mode: Literal["predict", "score", "predict_with_aux"] = "predict"
    output_dir: str | None = None
    split: str = "validation"
    step: int | None = None
    vocabulary: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    decoding: DecodingConfig = DecodingConfig(method="beam", num_beams=1)
    task_feature_lengths: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"inputs": 1024, "targets": 256}
    )
    inputs_add_eos: bool | None = None
    batch_size: int = 32
    checkpoint_period: int = 32
    shard_id: int = 0
    num_shards: int = 1
    data_dir: str | None = None
    templates: str | None = None
    partitioner: PartitionerConfig = PartitionerConfig()

    def __post_init__(self) -> None:
        if self.files is not None and self.mixture_or_task_name is not None:
            raise UserError("files and mixture_or_task_name exclude each other; unset one of them.")
        if self.mode not in MODES:
            raise UserError(f"mode must be one of {', '.join(MODES)}, not {self.mode!r}.")
        for field in ("batch_size", "checkpoint_period", "num_shards"):
            if getattr(self, field) < 1:
                raise UserError(f"{field} must be at least 1, not {getattr(self, field)}.")
        if not 0 <= self.shard_id < self.num_shards:
            raise UserError(
                f"shard_id must be from 0 to num_shards - 1 = {self.num_shards - 1}, "
                f"not {self.shard_id}."
            )
        if set(self.task_feature_lengths) != {"inputs", "targets"}:
            raise UserError(
                "task_feature_lengths must have 'inputs' and 'targets', not "
                f"{', '.join(self.task_feature_lengths) or 'nothing'}."
            )
        for name, length in self.task_feature_lengths.items():
            if length < 1:
                raise UserError(f"task_feature_lengths[{name!r}] must be at least 1, not {length}.")

    def run(self) -> InferResult:
        """Runs inference.

        Returns:
          The files that were written.

        Raises:
          UserError: a value has the wrong type, or the input cannot be used; nothing has been
            written.
        """
        job = self._checked()
        from mtf.jobs.infer_run import run

        return run(job)

    def describe(self) -> str:
        """Returns what would be run on what; reads all of the input, and no parameter.

        Raises:
          UserError: as `run`.
        """
        job = self._checked()
        from mtf.jobs.infer_run import describe

        return describe(job)

    def _checked(self) -> Infer:
        from mtf.config import as_checked

        if self.checkpoint is None:
            raise UserError("checkpoint is not set: name a run directory or a checkpoint.")
        if self.files is None and self.mixture_or_task_name is None:
            raise UserError("There is no input: set files or mixture_or_task_name.")
        return as_checked(self)
