"""Defines the settings for writing a token cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mtf.data.cache.format import ArrayRecordFormat, Info, write_json
from mtf.data.text.vocabularies import Vocabulary
from mtf.storage import AnyPath

if TYPE_CHECKING:
    from mtf.storage.remote import RemotePath

_ROWS_PER_SHARD = 131_072


@dataclass(frozen=True)
class CacheConfig:
    """Settings for writing a cache.

    Attributes:
      cache_dir: directory of the cache or, if the cache is in a store, a local directory for its
        descriptions and for unfinished files.
      vocabulary: vocabulary of all features.
      format: format of the shards.
      splits: splits of each task to write; None for train and validation or, if the task has
        neither, for all its splits. For ranked tasks, None selects only validation.
      seed: seed for the templates' random choices.
      num_shards: number of files per split; None for one file per 131,072 records.
      data_dir: mirror of the datasets; see `mtf.data.sources.datasets.open_split`.
      only: patterns for the names of the tasks to write; None for all tasks.
      skip_missing: whether to leave out tasks whose dataset is missing.
      max_rows: maximum number of records per split; None for all records.
      store: remote path to which finished files are uploaded, if the cache is in a store.
    """

    cache_dir: Path
    vocabulary: Vocabulary
    format: ArrayRecordFormat = field(default_factory=ArrayRecordFormat)
    splits: tuple[str, ...] | None = None
    seed: int = 0
    num_shards: int | None = None
    data_dir: str | None = None
    only: tuple[str, ...] | None = None
    skip_missing: bool = False
    max_rows: int | None = None
    store: RemotePath | None = None

    @property
    def where(self) -> AnyPath:
        """The directory or remote path of the cache, for messages."""
        return self.store or self.cache_dir

    def write(self, file: Path, info: Info) -> None:
        """Writes a description to a file in `cache_dir`, and uploads it if there is a store."""
        write_json(file, info)
        if self.store is not None:
            (self.store / file.relative_to(self.cache_dir).as_posix()).upload(file)

    def num_shards_of(self, num_rows: int) -> int:
        """Returns the number of files for a split that has `num_rows` records."""
        return self.num_shards or max(1, -(-num_rows // _ROWS_PER_SHARD))
