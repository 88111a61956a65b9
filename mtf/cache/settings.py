"""Settings of a token cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mtf.cache.format import ArrayRecordFormat, ShardFormat
from mtf.text.vocabularies import Vocabulary

_ROWS_PER_SHARD = 131_072


@dataclass(frozen=True)
class CacheConfig:
    """Settings for writing a cache.

    Attributes:
      cache_dir: directory of the cache.
      vocabulary: vocabulary of all features.
      format: format of the shards.
      splits: splits of each task; None: train and, if it exists, validation; for ranked tasks, only
        validation.
      seed: seed of the templates' random choices.
      num_shards: number of files of a split; None: one for every 131,072 records.
      data_dir: mirror of the datasets; None: see `mtf.sources.datasets.open_split`.
      only: patterns of task names; None: all tasks.
      skip_missing: whether to leave out tasks whose dataset is missing.
      max_rows: largest number of records of every split; None: all.
    """

    cache_dir: Path
    vocabulary: Vocabulary
    format: ShardFormat = field(default_factory=ArrayRecordFormat)
    splits: tuple[str, ...] | None = None
    seed: int = 0
    num_shards: int | None = None
    data_dir: str | None = None
    only: tuple[str, ...] | None = None
    skip_missing: bool = False
    max_rows: int | None = None

    def num_shards_of(self, num_rows: int) -> int:
        """Returns the number of files of a split."""
        return self.num_shards or max(1, -(-num_rows // _ROWS_PER_SHARD))
