"""Opens datasets on the Hugging Face hub, or files that `datasets` can read, for streaming."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from mtf.base.errors import UserError, did_you_mean, did_you_mean_split
from mtf.base.extras import import_extra
from mtf.data.sources.datasets import hub_name
from mtf.data.sources.hub import import_datasets, no_hub_hint

DataFiles: TypeAlias = str | tuple[str, ...] | dict[str, str | tuple[str, ...]] | None

# Subsets are opened concurrently because opening a hundred in sequence would take minutes.
_NUM_REQUESTS = 8
_LOCAL_FILES = (
    " A local mirror cannot be streamed. To stream local files, set data.dataset to 'text', 'json' "
    "or 'parquet' and data.data_files to the files."
)


class Split:
    """A split of a dataset that is read file by file.

    Attributes:
      name: name of the split, as shown in messages.
      num_files: number of files; they can be read independently of each other.
    """

    def __init__(self, name: str, dataset: Any, columns: Mapping[str, str]):
        self.name = name
        self.num_files = int(dataset.num_shards)
        self._dataset = dataset
        self._columns = columns
        if dataset.column_names is not None:
            self._check_columns(dataset.column_names)

    def file(self, index: int) -> Any:
        """Returns the records of one file as an independent `datasets.IterableDataset`."""
        return self._dataset.shard(num_shards=self.num_files, index=index)

    def text(self, row: Mapping[str, Any]) -> str:
        """Returns the text of a record, or an empty string if the text is None."""
        self._check_columns(row)
        text_key = self._columns["text_key"]
        text = row[text_key]
        if text is not None and not isinstance(text, str):
            raise UserError(
                f"data.text_key: the column {text_key!r} of {self.name} contains a value of "
                f"type {type(text).__name__}; expected only strings"
            )
        return text or ""

    def _check_columns(self, columns: Any) -> None:
        for setting, column in self._columns.items():
            if column not in columns:
                hint = did_you_mean(column, columns)
                raise UserError(
                    f"data.{setting}: {self.name} has no column {column!r}; it has "
                    f"{', '.join(map(repr, columns))}.{hint}"
                )


def open_splits(
    dataset: str,
    subsets: Iterable[str] | None,
    split: str,
    *,
    columns: Mapping[str, str],
    data_files: DataFiles = None,
    required: bool = True,
) -> dict[str, Split]:
    """Returns a dict that maps each subset, or "" if there are no subsets, to its split.

    `columns` maps settings, such as "text_key", to the columns that the dataset must have. See
    `HubStreamConfig` for the other arguments. If `required` is False, subsets without the split are
    omitted. Raises UserError if the package `datasets`, the dataset, a subset, the split or the
    a column is missing.
    """
    names = list(subsets or ("",))
    with ThreadPoolExecutor(_NUM_REQUESTS) as pool:
        load = functools.partial(_load, dataset, data_files=json.dumps(data_files))
        loaded = dict(zip(names, pool.map(load, names), strict=True))
    found = {}
    for subset, splits in loaded.items():
        name = f"{dataset}/{subset}" if subset else dataset
        if split in splits:
            found[subset] = Split(f"{name} ({split})", splits[split], columns)
        elif required:
            hint = did_you_mean_split(split, splits)
            raise UserError(
                f"data.split: {name} has no split {split!r}; it has "
                f"{', '.join(map(repr, splits))}.{hint}"
            )
    return found


@functools.lru_cache(maxsize=256)
def _load(dataset: str, subset: str, data_files: str) -> Mapping[str, Any]:
    """Returns the splits of a dataset by name, each as a `datasets.IterableDataset`."""
    files = json.loads(data_files)
    purpose = f"streaming {dataset}"
    datasets = import_datasets(purpose) if files is None else import_extra("datasets", purpose)
    hint = f".{no_hub_hint()}{_LOCAL_FILES}" if files is None and no_hub_hint() else ""
    where = f"data.dataset: {dataset}" + (f", subset {subset!r}" if subset else "")
    try:
        name = hub_name(dataset) if files is None else dataset
        splits: Mapping[str, Any] = datasets.load_dataset(
            name, subset or None, data_files=files, streaming=True
        )
    except FileNotFoundError as error:
        if not hint and not files:
            hint = (
                "; expected a dataset on the Hugging Face hub. If it requires a login, run "
                "`hf auth login`"
            )
        raise UserError(f"{where} was not found: {_first_line(error)}{hint}") from error
    except StopIteration as error:  # `datasets` found no first record.
        raise UserError(
            f"data.data_files: the files that match {json.dumps(files)} contain no records"
        ) from error
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"{where} cannot be streamed: {_first_line(error)}{hint}") from error
    return splits


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
