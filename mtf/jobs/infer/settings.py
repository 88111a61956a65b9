"""The settings of a batch inference job. Does not import JAX."""

from __future__ import annotations

import dataclasses
from typing import Literal

from mtf.base.checks import AT_LEAST_ONE, POSITIVE, check_fields, one_of
from mtf.base.errors import UserError
from mtf.base.processes.heartbeat import HANG_SECONDS
from mtf.inference.decoding.settings import DecodingConfig
from mtf.jobs.job import Job
from mtf.jobs.results import InferResult
from mtf.partitioning.settings import PartitionerConfig


@dataclasses.dataclass(frozen=True)
class Infer(Job[InferResult]):
    """Predicts or scores targets for the examples in files or tasks (T5X: `infer.infer`).

    The results contain one line for each example, in the order of the examples. A job that was
    killed resumes when it is restarted, with the same results as an uninterrupted job.

    Attributes:
      checkpoint: a run directory, an mtf or T5X checkpoint, or a Hugging Face directory; required
        to run the job.
      files: paths or patterns of `.txt`, `.jsonl`, `.csv` or `.tsv` files (see
        docs/inference.md). Either `files` or `mixture_or_task_name` must be set.
      mixture_or_task_name: the name of a mixture or task. For a ranked task (`*_score_eval`), every
        answer choice is scored, but each input is decoded only once.
      mode: "predict" decodes targets, "score" computes the log-likelihood of given targets, and
        "predict_with_aux" decodes targets and returns their scores.
      output_dir: the directory for the results, which are written to a file
        `{name}-{mode}.jsonl-00000-of-00001` for each file or task; None for `inference/` in the run
        directory or, if there is no run directory, for `./inference/NAME`.
      split: the split of the tasks.
      step: the step of the checkpoint; None for the latest.
      vocabulary: "t5", "mt5", "byt5", a SentencePiece model or a tokenizer.json; None for the
        vocabulary of the checkpoint.
      dtype: the dtype of the parameters and activations.
      decoding: the decoding settings. The default is T5X's beam search with one beam, which differs
        from greedy decoding (see docs/inference.md).
      task_feature_lengths: the maximum number of tokens in inputs and in targets to score. Longer
        sequences are truncated, and their number is reported.
      inputs_add_eos: whether EOS is appended to inputs. None uses the setting of the task or, for
        files, that of the training run (True if that is unknown).
      batch_size: the number of examples in a batch.
      checkpoint_period: the number of batches between writes; a job that was killed repeats at most
        this many batches.
      shard_id: the index, from 0, of the shard of examples that this job processes. The last job to
        finish joins the results.
      num_shards: the number of jobs among which the examples are divided.
      data_dir: a local mirror of the tasks' datasets; None for the directory MTF_DATA_DIR or, if
        that is not set, the Hugging Face hub.
      templates: the directory of promptsource's templates; None for the directory MTF_PROMPTS or,
        if that is not set, the templates that `mtf prompts fetch` has downloaded.
      module: the name of a module that registers custom tasks or mixtures.
      partitioner: how the model and the batch are split across devices.
      hang_seconds: the number of seconds without progress, such as a finished batch, after which
        the stack traces of all threads are printed and the job ends with exit status 1; four times
        as many while the job starts and loads the checkpoint. None for no limit.
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
    module: str | None = dataclasses.field(default=None, metadata={"imports": "modules"})
    partitioner: PartitionerConfig = PartitionerConfig()
    hang_seconds: float | None = HANG_SECONDS

    def __post_init__(self) -> None:
        if self.files is not None and self.mixture_or_task_name is not None:
            raise UserError("files and mixture_or_task_name are both set; set only one of them.")
        check_fields(self, one_of("predict", "score", "predict_with_aux"), "mode")
        check_fields(self, AT_LEAST_ONE, "batch_size", "checkpoint_period", "num_shards")
        check_fields(self, POSITIVE, "hang_seconds", optional=True)
        if not 0 <= self.shard_id < self.num_shards:
            raise UserError(
                f"shard_id must be at least 0 and less than num_shards={self.num_shards}, not "
                f"{self.shard_id}."
            )
        if set(self.task_feature_lengths) != {"inputs", "targets"}:
            raise UserError(
                "task_feature_lengths must have exactly the keys 'inputs' and 'targets', but has "
                f"{', '.join(map(repr, self.task_feature_lengths)) or 'neither'}."
            )
        for name, length in self.task_feature_lengths.items():
            if length < 1:
                raise UserError(f"task_feature_lengths[{name!r}] must be at least 1, not {length}.")

    def check_input(self) -> None:
        """Raises UserError if neither files nor a task is set."""
        if self.files is None and self.mixture_or_task_name is None:
            raise UserError("No input is set; set files or mixture_or_task_name.")
