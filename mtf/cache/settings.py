"""How a token cache is written, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mtf.cache.format import ArrayRecordFormat, ShardFormat
from mtf.text.vocabularies import Vocabulary

_ROWS_PER_SHARD = 131_072


@dataclass(frozen=True)
class CacheConfig:
    """How a cache is written.

    Attributes:
      cache_dir: where.
      vocabulary: tokenizes all features.
      format: of the shards.
      splits: of each task; None: train and, where the dataset has it, validation, and only
        validation of tasks that are ranked.
      seed: of the templates' random choices.
      num_shards: files of a split; None: one for each 131,072 rows.
      data_dir: the mirror of the datasets; None: as `mtf.sources.datasets` has it.
      only: patterns of task names; None: all.
      skip_missing: leave out tasks whose dataset is missing.
      max_rows: of every split; None: all.
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
