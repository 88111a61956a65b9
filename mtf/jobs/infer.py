"""The job of batch inference. Imports no jax until it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mtf.checks import AT_LEAST_ONE, POSITIVE, check_fields
from mtf.decoding.settings import DecodingConfig
from mtf.errors import UserError
from mtf.jobs.results import InferResult
from mtf.partitioning.settings import PartitionerConfig
from mtf.storage import AnyPath, as_path
from mtf.writing import LOCK_FILE, locked, os_errors_refused

if TYPE_CHECKING:
    from mtf.cluster.heartbeat import Heartbeat
    from mtf.inference.batch import BatchInference, Source
    from mtf.inference.files import Results
    from mtf.inference.loading import Loaded
    from mtf.inference.opening import Opened
    from mtf.jobs.description import Description
    from mtf.tasks.mixtures import Mixture
    from mtf.text.vocabularies import Vocabulary

MODES = ("predict", "score", "predict_with_aux")


@dataclasses.dataclass(frozen=True)
class Infer:
    """Predicts or scores the targets of files or tasks (T5X: `infer.infer`).

    The results have one line per example, in order. A killed run resumes when it is started again,
    and writes the same bytes.

    Attributes:
      checkpoint: a run directory, a checkpoint of mtf or T5X, or a Hugging Face directory; must be
        set.
      files: paths or patterns of `.txt`, `.jsonl` or `.tsv` files (see docs/inference.md). Either
        `files` or `mixture_or_task_name` must be set.
      mixture_or_task_name: name of a mixture or task. For a ranked task (`*_score_eval`), each
        answer choice is scored, but inputs are decoded once.
      mode: "predict" decodes targets, "score" computes the log-likelihood of given targets, and
        "predict_with_aux" decodes targets and returns their scores.
      output_dir: directory of the results, `{name}-{mode}.jsonl-00000-of-00001` for each file or
        task; None: `inference/` in the run directory, or `./inference/NAME` without a run.
      split: split of the tasks.
      step: step of the checkpoint; None: the latest.
      vocabulary: "t5", "mt5", "byt5" or a SentencePiece model file; None: the checkpoint's.
      dtype: dtype of parameters and activations.
      decoding: decoding settings; the default is T5X's, beam search with one beam, which is not
        greedy decoding (see docs/inference.md).
      task_feature_lengths: maximum number of tokens of inputs and of targets to score; longer ones
        are truncated and counted.
      inputs_add_eos: whether EOS is appended to inputs; None: as the task defines, or for files as
        in the training run, and True if none is known.
      batch_size: number of examples in a batch.
      checkpoint_period: number of batches between writes; a killed run repeats at most these.
      shard_id: index of the shard of examples, from 0, for this job; the last job to finish joins
        the results.
      num_shards: number of jobs that divide the examples.
      data_dir: local mirror of the tasks' datasets; None: MTF_DATA_DIR, else the hub.
      templates: promptsource's templates; None: MTF_PROMPTS, else those of `mtf prompts fetch`.
      module: module that registers tasks or mixtures of your own.
      partitioner: how model and batch are split over devices.
      hang_seconds: seconds without progress, such as a batch, after which a process writes the
        stacks of all threads and the job ends with exit status 1. Starting and loading the
        checkpoint may take four times as long. None: never.
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
    module: str | None = None
    partitioner: PartitionerConfig = PartitionerConfig()
    hang_seconds: float | None = 1800.0

    def __post_init__(self) -> None:
        if self.files is not None and self.mixture_or_task_name is not None:
            raise UserError("files and mixture_or_task_name are both set; set only one of them.")
        if self.mode not in MODES:
            raise UserError(f"mode must be one of {', '.join(MODES)}, not {self.mode!r}.")
        check_fields(self, AT_LEAST_ONE, "batch_size", "checkpoint_period", "num_shards")
        check_fields(self, POSITIVE, "hang_seconds", optional=True)
        if not 0 <= self.shard_id < self.num_shards:
            raise UserError(
                f"shard_id must be at least 0 and less than num_shards={self.num_shards}, not "
                f"{self.shard_id}."
            )
        if set(self.task_feature_lengths) != {"inputs", "targets"}:
            raise UserError(
                "task_feature_lengths must have exactly 'inputs' and 'targets', but has "
                f"{', '.join(map(repr, self.task_feature_lengths)) or 'neither'}."
            )
        for name, length in self.task_feature_lengths.items():
            if length < 1:
                raise UserError(f"task_feature_lengths[{name!r}] must be at least 1, not {length}.")

    def run(self) -> InferResult:
        """Runs inference; if the input cannot be used, raises UserError and writes nothing."""
        from mtf.config import as_checked

        self._check_input()
        job = as_checked(self)
        from mtf.jobs.watched import watched

        with watched(job.hang_seconds) as heartbeat:
            return job._run(heartbeat)

    def _run(self, heartbeat: Heartbeat) -> InferResult:
        from mtf.inference.batch import BatchInference
        from mtf.inference.files import Results
        from mtf.inference.loading import load_model
        from mtf.jobs.watched import recorded
        from mtf.partitioning.mesh import PjitPartitioner
        from mtf.partitioning.processes import is_first_process

        # All errors in the input are found here, before anything is written.
        partitioner = PjitPartitioner.create(self.partitioner)
        opened = self._open()
        sources = self._sources(opened)
        loaded = load_model(opened, dtype=self.dtype, partitioner=partitioner)
        output_dir, lengths = self._output_dir(loaded.path), self.task_feature_lengths
        shard = {"shard_id": self.shard_id, "num_shards": self.num_shards}
        batch = BatchInference(
            loaded.predictor(self.batch_size, lengths["inputs"], lengths["targets"]),
            loaded.vocabulary,
            lengths,
            self.mode,
            self.decoding,
            self.batch_size * self.checkpoint_period,
            **shard,
            heartbeat=heartbeat,
        )
        with contextlib.ExitStack() as stack:
            stack.enter_context(os_errors_refused(output_dir, "output_dir"))
            if is_first_process():
                stack.enter_context(locked(output_dir, "output_dir", name=self._lock_name()))
            if self.num_shards == 1:  # The jobs of several shards share the directory.
                stack.enter_context(recorded(heartbeat, output_dir))
            results = [
                Results(
                    output_dir, f"{source.name}-{self.mode}", self._decides(source, loaded), **shard
                )
                for source in sources
            ]
            files = [
                _write(batch, source, result)
                for source, result in zip(sources, results, strict=True)
            ]
        sys.stdout.flush()
        return InferResult(tuple(files))

    def describe(self) -> Description:
        """Returns the settings, and checks of the checkpoint and of all files; allocates nothing.

        Datasets are not read. Raises UserError if a type is wrong; the description contains all
        other problems.
        """
        from mtf.config import as_checked

        job = as_checked(self)
        from mtf.jobs.description import Checks, Description, about_model
        from mtf.partitioning.planning import plan_devices

        checks, lengths = Checks(), job.task_feature_lengths
        opened = checks.add("checkpoint", job._open, about_model)
        if job.files is None:
            name = job.mixture_or_task_name or "input"
            checks.add(name, lambda: job._check_tasks(opened))
        else:
            sources = checks.add("files", lambda: job._sources(opened), lambda s: f"{len(s)}")
            for each in sources or ():
                checks.rows[each.name] = f"{each.summary.num_examples:,} examples"
        rows = {
            "mode": job.mode if job.mode == "score" else f"{job.mode}, {job.decoding.method}",
            "lengths": f"inputs {lengths['inputs']}, targets {lengths['targets']}",
            "dtype": job.dtype,
            **plan_devices(job.partitioner).rows(),
            "batch": f"{job.batch_size} examples, shard {job.shard_id} of {job.num_shards}",
        }
        if opened is not None:
            rows["output_dir"] = str(job._output_dir(opened.checkpoint.path))
        return Description({**rows, **checks.rows}, tuple(checks.problems))

    def _open(self) -> Opened:
        from mtf.inference.opening import open_model

        if self.checkpoint is None:
            raise UserError(
                "checkpoint is not set; set it to a run directory or a checkpoint: "
                "--set checkpoint=PATH"
            )
        return open_model(self.checkpoint, step=self.step, vocabulary=self.vocabulary)

    def _check_input(self) -> None:
        if self.files is None and self.mixture_or_task_name is None:
            raise UserError("No input is set; set files or mixture_or_task_name.")

    def _check_tasks(self, opened: Opened | None) -> str:
        """Returns how many tasks have data; raises UserError if inference would be refused."""
        from mtf.tasks.mixtures import split_available

        self._check_input()
        mixture = self._mixture(None if opened is None else opened.vocabulary)
        present, absent = split_available(mixture, self.split, self.data_dir, download=False)
        skipped = f"; {len(absent)} are skipped: {absent[0][1]}" if absent else ""
        return f"{len(present)} of {len(present) + len(absent)} tasks have data{skipped}"

    def _mixture(self, vocabulary: Vocabulary | None) -> Mixture:
        """Returns the mixture; the user's SeqIO tasks need the vocabulary of the checkpoint."""
        from mtf.loaders import find_mixture
        from mtf.text.vocabularies import ByteVocabulary

        name = str(self.mixture_or_task_name)
        return find_mixture(name, vocabulary or ByteVocabulary(), self.module, self.templates)

    def _sources(self, opened: Opened | None) -> list[Source]:
        """Returns the sources for a checkpoint; without one, only to check the files."""
        from mtf.inference.batch import file_sources, task_sources

        add_eos = self.inputs_add_eos
        if self.files is not None:
            files = (self.files,) if isinstance(self.files, str) else self.files
            if add_eos is None:
                add_eos = opened is None or opened.inputs_add_eos
            return file_sources(files, self.mode, add_eos)
        tasks = self._mixture(None if opened is None else opened.vocabulary)
        return task_sources(tasks, self.split, self.mode, self.data_dir, add_eos)

    def _output_dir(self, checkpoint: AnyPath) -> AnyPath:
        if self.output_dir is not None:
            return as_path(self.output_dir)
        folder = checkpoint.resolve().parent
        if folder.name == "checkpoints":
            return folder.parent / "inference"
        return Path("inference") / checkpoint.resolve().name

    def _lock_name(self) -> str:
        """Returns the name of the lock in the output directory, which shards share."""
        shard = f"-{self.shard_id:05}-of-{self.num_shards:05}"
        return LOCK_FILE + shard * (self.num_shards > 1)

    def _decides(self, source: Source, loaded: Loaded) -> dict[str, Any]:
        """Returns the values that determine the results of a source."""
        return {
            "examples": source.summary.num_examples,
            "fingerprint": source.summary.fingerprint,
            "checkpoint": str(loaded.path.resolve()),
            "step": loaded.step,
            "vocabulary": loaded.vocabulary.fingerprint(),
            "mode": self.mode,
            "dtype": self.dtype,
            "task_feature_lengths": self.task_feature_lengths,
            "inputs_add_eos": source.inputs_add_eos,
            "targets_add_eos": source.targets_add_eos,
            "batch_size": self.batch_size,
            "checkpoint_period": self.checkpoint_period,
            **({} if self.mode == "score" else {"decoding": dataclasses.asdict(self.decoding)}),
        }


def _write(batch: BatchInference, source: Source, results: Results) -> AnyPath:
    """Writes and reports the results of a source; returns the file."""
    from mtf.partitioning.processes import is_first_process

    was_done = results.done
    try:
        file = batch.write(source, results)
    except UserError:
        if is_first_process():
            results.remove_if_empty()
        raise
    if is_first_process():
        print(batch.report(source, results, file, was_done))
    return file
