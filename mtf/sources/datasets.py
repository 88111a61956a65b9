"""Where the rows of datasets come from: a local mirror, else the Hugging Face hub.

`open_split` gives the rows of a split, whichever of them has it; what is streamed from the hub
instead (`mtf/data/stream_loader.py`) takes only `hub_name` from here.

A mirror is a directory of `DATASET[/SUBSET]/SPLIT.parquet`, under the names that the datasets had
in 2021, with the columns that promptsource's templates expect (class labels are integers).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from mtf.errors import UserError, did_you_mean_split
from mtf.extras import import_extra
from mtf.sources.hub import import_datasets, no_hub_hint

ENVIRONMENT_VARIABLE = "MTF_DATA_DIR"

# Today's repositories, which keep the names of 2021 behind their owners'; and those that do not.
_REPOSITORIES = (
    *("UCLNLP/adversarial_qa", "fancyzhx/ag_news", "allenai/ai2_arc", "fancyzhx/amazon_polarity"),
    *("facebook/anli", "sealuzh/app_reviews", "abisee/cnn_dailymail", "allenai/c4"),
    *("allenai/common_gen", "Salesforce/cos_e", "allenai/cosmos_qa", "nyu-mll/crows_pairs"),
    *("fancyzhx/dbpedia_14", "dataset-org/dream", "ibm-research/duorc", "Harvard/gigaword"),
    *("nyu-mll/glue", "Rowan/hellaswag", "stanfordnlp/imdb", "google/jigsaw_toxicity_pred"),
    *("facebook/kilt_tasks", "alexfabbri/multi_news", "nyu-mll/multi_nli", "allenai/openbookqa"),
    *("google-research-datasets/paws", "ybisk/piqa", "allenai/qasc", "textmachinelab/quail"),
    *("community-datasets/quarel", "allenai/quartz", "allenai/quoref", "ehovy/race"),
    *("allenai/ropes", "cornell-movie-review-data/rotten_tomatoes", "knkarthick/samsum"),
    *("allenai/sciq", "allenai/social_i_qa", "rajpurkar/squad_v2", "aps/super_glue"),
    *("mandarjoshi/trivia_qa", "stanfordnlp/web_questions", "michaelauli/wiki_bio"),
    *("QAngaroo/wiki_hop", "microsoft/wiki_qa", "uclanlp/wino_bias", "allenai/winogrande"),
    *("allenai/wiqa", "cambridgeltl/xcopa", "facebook/xnli", "EdinburghNLP/xsum"),
    "Yelp/yelp_review_full",
)
_HUB_NAMES = {repository.partition("/")[2]: repository for repository in _REPOSITORIES} | {
    "mc4": "allenai/c4",
    "opus100": "Helsinki-NLP/opus-100",
}
# What the hub does not have as it was in 2021.
_NOT_ON_HUB = {
    "story_cloze": "Story Cloze is given out through a form: "
    "https://cs.rochester.edu/nlp/rocstories/",
    "trec": "the hub's CogComp/trec has other columns and other numbers for its classes since 2022,"
    " which promptsource's templates would read wrongly",
}
# Nobody can be expected to have these, so evaluation goes on without them.
_BEHIND_A_FORM = {"story_cloze"}


class MissingDatasetError(UserError):
    """A dataset, or a split of it, is neither in the mirror nor on the hub.

    Attributes:
      skippable_in_evaluation: whether a mixture is evaluated without it, with a note: True for a
        dataset that must be asked for through a form. In training it is an error all the same.
    """

    def __init__(self, message: str, *, skippable_in_evaluation: bool = False):
        super().__init__(message)
        self.skippable_in_evaluation = skippable_in_evaluation


class Rows(Protocol):
    """The rows of a split, as Python values."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, Any]]: ...

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yields the rows from `start` up to `stop` or the end, without reading all before them."""
        ...


class ParquetRows:
    """The rows of a Parquet file; a thousand are in memory at a time."""

    def __init__(self, path: Path):
        """Raises UserError where the file is not Parquet."""
        self.path = path
        with self._open() as file:
            self._num_rows = int(file.metadata.num_rows)

    def __len__(self) -> int:
        return self._num_rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.rows(0, len(self))

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """See `Rows`; row groups without any of the rows are not read."""
        position = 0
        with self._open() as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if position + size <= start or stop <= position:
                    position += size
                    continue
                for batch in file.iter_batches(batch_size=1000, row_groups=[group]):
                    first = max(start - position, 0)
                    yield from batch.slice(first, max(stop - position - first, 0)).to_pylist()
                    position += len(batch)

    def _open(self) -> Any:
        parquet = import_extra("pyarrow.parquet", "reading Parquet files")
        try:
            return parquet.ParquetFile(self.path)
        except (ValueError, OSError) as error:
            raise UserError(f"{self.path} is not a Parquet file: {error}") from error


class HubRows:
    """The rows of a `datasets.Dataset`."""

    def __init__(self, dataset: Any):
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._dataset)

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """See `Rows`."""
        return iter(self._dataset.select(range(len(self))[start:stop]))


def hub_name(dataset: str) -> str:
    """Returns the repository that a dataset of 2021 has on the hub today, or the name as it is.

    Raises MissingDatasetError if the hub does not have the dataset, or no longer as it was.
    """
    if dataset in _NOT_ON_HUB:
        raise MissingDatasetError(
            _NOT_ON_HUB[dataset], skippable_in_evaluation=dataset in _BEHIND_A_FORM
        )
    return _HUB_NAMES.get(dataset, dataset)


def open_split(
    dataset: str, subset: str | None, split: str, *, data_dir: str | os.PathLike[str] | None = None
) -> Rows:
    """Returns the rows of a split of a dataset, from the mirror or else from the hub.

    Args:
      dataset, subset: names of 2021, as in `t0_datasets.csv`; others are taken as the hub's.
      split: the dataset's own name of it.
      data_dir: the mirror; None: the directory that the environment variable MTF_DATA_DIR names.

    Raises MissingDatasetError if it is nowhere; says where it was looked for and how to get it.
    """
    name = f"{dataset}/{subset}" if subset else dataset
    folder = _mirror_folder(dataset, subset, data_dir)
    if folder is None:
        tried = f"no mirror is named: {ENVIRONMENT_VARIABLE} is not set"
    else:
        path = folder / f"{split}.parquet"
        if path.is_file():
            return ParquetRows(path)
        tried = f"the mirror has no {path}"
        if folder.is_dir():
            splits = mirror_splits(dataset, subset, data_dir)
            tried += f", only {', '.join(splits) or 'no splits'}."
            tried += did_you_mean_split(split, splits)
    missing = f"{name}, split {split}, is missing: {tried}"
    how = (
        f"To use a copy of your own, put it at DIR/{name}/{split}.parquet and set "
        f"{ENVIRONMENT_VARIABLE}=DIR"
    )
    try:
        return _open_hub(dataset, subset, split)
    except UserError as error:
        raise MissingDatasetError(
            f"{missing}; {str(error).rstrip('.')}. {how}",
            skippable_in_evaluation=getattr(error, "skippable_in_evaluation", False),
        ) from error


def mirror_splits(
    dataset: str, subset: str | None, data_dir: str | os.PathLike[str] | None = None
) -> list[str]:
    """Returns the names of a dataset's splits in the mirror, which is found as in `open_split`."""
    folder = _mirror_folder(dataset, subset, data_dir)
    return sorted(file.stem for file in folder.glob("*.parquet")) if folder else []


def _mirror_folder(
    dataset: str, subset: str | None, data_dir: str | os.PathLike[str] | None
) -> Path | None:
    root = data_dir or os.environ.get(ENVIRONMENT_VARIABLE)
    return Path(root).expanduser() / dataset / (subset or "") if root else None


def _open_hub(dataset: str, subset: str | None, split: str) -> Rows:
    repository = hub_name(dataset)
    hub = import_datasets("reading from the Hugging Face hub")
    try:
        try:
            rows = hub.load_dataset(repository, subset, split=split)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            # The hub keeps what a dataset's script made of its first 5 GB on a branch of its own.
            files = f"hf://datasets/{repository}@refs/convert/parquet/{subset or '*'}/{split}"
            rows = hub.load_dataset("parquet", data_files=f"{files}/*.parquet", split="train")
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the Hugging Face hub does not give {repository} ({type(error).__name__}: {error})."
            f"{no_hub_hint()}"
        ) from error
    return HubRows(rows)
