"""The settings of a job that writes a token cache. Does not import NumPy."""

from __future__ import annotations

import dataclasses
from typing import Literal

from mtf.base.checks import AT_LEAST_ONE, POSITIVE, check_fields
from mtf.base.processes.heartbeat import HANG_SECONDS
from mtf.data.settings import DatasetTaskConfig
from mtf.jobs.job import Job
from mtf.storage import AnyPath

_PATH = {"path": True}


@dataclasses.dataclass(frozen=True)
class Cache(Job[AnyPath]):
    """Renders and tokenizes a mixture or a single task into a directory.

    A job that failed or was killed continues when it is restarted; it keeps the finished parts. The
    fields are the options of `python -m mtf.cache`, and messages name them so.

    Attributes:
      mixture: the name of a mixture or task.
      output: the directory of the cache: a local path, gs://… or s3://…; None for the directory in
        $MTF_CACHE (~/.cache/mtf) from which recipes read the mixture by default.
      vocabulary: a SentencePiece model, a tokenizer.json, or byt5 for bytes; None for the mixture's
        model, downloaded once.
      extra_ids: the number of sentinels to add, unless the model already contains them; None for
        100, or 0 with byt5.
      split: the splits to write; None for train and validation, or all splits of a task that has
        neither; only validation for tasks whose names end in _score_eval.
      only: cache only tasks whose names match any of these patterns, such as `piqa_*`; None for all
        tasks.
      max_rows: the number of records to read per split; None for all.
      seed: the seed for random choices in the templates.
      module: a module that registers custom tasks or mixtures, such as my.tasks.
      data_dir: a directory with datasets as DATASET[/SUBSET]/SPLIT.parquet; None for $MTF_DATA_DIR,
        otherwise the Hugging Face hub.
      templates: promptsource's archive or directory; None for $MTF_PROMPTS, otherwise the templates
        that `python -m mtf prompts fetch` downloaded.
      skip_missing: whether to skip tasks whose datasets are missing.
      from_seqio: the directory DIR of SeqIO caches DIR/TASK/SPLIT.* to convert, also
        hf://datasets/bigscience/P3; None for rendering and tokenizing the datasets.
      task: a dataset, used as the task MIXTURE.
      format: array_record for data.loader='cache'; seqio for TFRecords that SeqIO and T5X read with
        use_cached=True.
      num_workers: the number of processes; None for one per core.
      num_shards: the number of files per split; None for a number that depends on its size.
      hang_seconds: the number of seconds without progress after which the stack traces of all
        threads are printed and the job ends; None for no limit.
    """

    mixture: str
    output: str | None = None
    vocabulary: str | None = dataclasses.field(default=None, metadata=_PATH)
    extra_ids: int | None = None
    split: tuple[str, ...] | None = None
    only: tuple[str, ...] | None = dataclasses.field(default=None, metadata={"metavar": "GLOB"})
    max_rows: int | None = None
    seed: int = 0
    module: str | None = dataclasses.field(default=None, metadata={"imports": "modules"})
    data_dir: str | None = dataclasses.field(default=None, metadata=_PATH)
    templates: str | None = dataclasses.field(default=None, metadata=_PATH)
    skip_missing: bool = False
    from_seqio: str | None = dataclasses.field(default=None, metadata=_PATH | {"metavar": "DIR"})
    task: DatasetTaskConfig | None = None
    format: Literal["array_record", "seqio"] = "array_record"
    num_workers: int | None = None
    num_shards: int | None = None
    hang_seconds: float | None = HANG_SECONDS

    def __post_init__(self) -> None:
        numbers = ("max_rows", "num_workers", "num_shards")
        check_fields(self, AT_LEAST_ONE, *numbers, optional=True)
        check_fields(self, POSITIVE, "hang_seconds", optional=True)
