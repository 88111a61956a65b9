"""Where the rows of datasets come from: a local mirror, else the Hugging Face hub.

`open_split` gives the rows of a split, whichever of them has it; what is streamed from the hub
instead (`mtf/data/stream_loader.py`) takes only `hub_name` from here.

A mirror is a directory of `DATASET[/SUBSET]/SPLIT.parquet`, under the names that the datasets had
in 2021, with the columns that promptsource's templates expect (class labels are integers).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from mtf.errors import UserError, did_you_mean_split
from mtf.extras import import_extra
from mtf.sources.hub import import_datasets, no_hub_hint

ENVIRONMENT_VARIABLE = "MTF_DATA_DIR"

_STORY_CLOZE_FORM = "https://cs.rochester.edu/nlp/rocstories/"
# Names of 2021 → today's repositories.
_HUB_NAMES = {
    "adversarial_qa": "UCLNLP/adversarial_qa",
    "ag_news": "fancyzhx/ag_news",
    "ai2_arc": "allenai/ai2_arc",
    "amazon_polarity": "fancyzhx/amazon_polarity",
    "anli": "facebook/anli",
    "app_reviews": "sealuzh/app_reviews",
    "cnn_dailymail": "abisee/cnn_dailymail",
    "c4": "allenai/c4",
    "common_gen": "allenai/common_gen",
    "cos_e": "Salesforce/cos_e",
    "cosmos_qa": "allenai/cosmos_qa",
    "crows_pairs": "nyu-mll/crows_pairs",
    "dbpedia_14": "fancyzhx/dbpedia_14",
    "dream": "dataset-org/dream",
    "duorc": "ibm-research/duorc",
    "gigaword": "Harvard/gigaword",
    "glue": "nyu-mll/glue",
    "hellaswag": "Rowan/hellaswag",
    "imdb": "stanfordnlp/imdb",
    "jigsaw_toxicity_pred": "google/jigsaw_toxicity_pred",
    "kilt_tasks": "facebook/kilt_tasks",
    "mc4": "allenai/c4",
    "multi_news": "alexfabbri/multi_news",
    "multi_nli": "nyu-mll/multi_nli",
    "openbookqa": "allenai/openbookqa",
    "opus100": "Helsinki-NLP/opus-100",
    "paws": "google-research-datasets/paws",
    "piqa": "ybisk/piqa",
    "qasc": "allenai/qasc",
    "quail": "textmachinelab/quail",
    "quarel": "community-datasets/quarel",
    "quartz": "allenai/quartz",
    "quoref": "allenai/quoref",
    "race": "ehovy/race",
    "ropes": "allenai/ropes",
    "rotten_tomatoes": "cornell-movie-review-data/rotten_tomatoes",
    "samsum": "knkarthick/samsum",
    "sciq": "allenai/sciq",
    "social_i_qa": "allenai/social_i_qa",
    "squad_v2": "rajpurkar/squad_v2",
    "super_glue": "aps/super_glue",
    "trivia_qa": "mandarjoshi/trivia_qa",
    "web_questions": "stanfordnlp/web_questions",
    "wiki_bio": "michaelauli/wiki_bio",
    "wiki_hop": "QAngaroo/wiki_hop",
    "wiki_qa": "microsoft/wiki_qa",
    "wino_bias": "uclanlp/wino_bias",
    "winogrande": "allenai/winogrande",
    "wiqa": "allenai/wiqa",
    "xcopa": "cambridgeltl/xcopa",
    "xnli": "facebook/xnli",
    "xsum": "EdinburghNLP/xsum",
    "yelp_review_full": "Yelp/yelp_review_full",
}
# What the hub does not have as it was in 2021.
_NOT_ON_HUB = {
    "story_cloze": f"Story Cloze is given out through a form: {_STORY_CLOZE_FORM}",
    "trec": "the hub's CogComp/trec has other columns and other numbers for its classes since 2022,"
    " which promptsource's templates would read wrongly",
}


# Nobody can be expected to have these, so that evaluation goes on without them.
_BEHIND_A_FORM = {"story_cloze"}


class MissingDatasetError(UserError):
    """A dataset, or a split of it, is neither in the mirror nor on the hub.

    Attributes:
      skippable_in_evaluation: whether a mixture is evaluated without it, with a note. It is so
        where a dataset can only be asked for by a form; in training it is an error all the same.
    """

    def __init__(self, message: str, *, skippable_in_evaluation: bool = False):
        """`message` says what is missing, where it was looked for and how to get it."""
        super().__init__(message)
        self.skippable_in_evaluation = skippable_in_evaluation


class Rows(Protocol):
    """The rows of a split: as many as `len`, each time from the first."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, Any]]: ...

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yields rows `start` to `stop`, without reading all before them.

        As in a slice, a `stop` after the end is the end; neither may be negative.
        """
        ...


class ParquetRows:
    """The rows of a Parquet file, as Python values; a thousand are in memory at a time."""

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
        """Yields rows `start` to `stop`; row groups without any of them are not read."""
        with self._open() as file:
            sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
            ends = list(itertools.accumulate(sizes))
            groups = [
                number
                for number, (size, end) in enumerate(zip(sizes, ends, strict=True))
                if end > start and end - size < stop
            ]
            if not groups:
                return
            position = ends[groups[0]] - sizes[groups[0]]
            for batch in file.iter_batches(batch_size=1000, row_groups=groups):
                wanted = batch.slice(max(start - position, 0), max(stop - max(start, position), 0))
                yield from wanted.to_pylist()
                position += len(batch)

    def _open(self) -> Any:
        parquet = import_extra("pyarrow.parquet", "reading Parquet files")
        pyarrow = import_extra("pyarrow", "reading Parquet files")
        try:
            return parquet.ParquetFile(self.path)
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise UserError(f"{self.path} is not a Parquet file: {error}") from error


class HubRows:
    """The rows of a split that the library `datasets` has downloaded."""

    def __init__(self, dataset: Any):
        """`dataset` is a `datasets.Dataset`."""
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._dataset)

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yields rows `start` to `stop`."""
        return iter(self._dataset.select(range(len(self))[start:stop]))


def hub_name(dataset: str) -> str:
    """Returns the repository that a dataset has on the Hugging Face hub today.

    Args:
      dataset: its name of 2021, when few had an owner's name before them; any other is returned as
        it is.

    Raises:
      MissingDatasetError: the hub does not have it, or no longer as it was; says why.
    """
    if dataset in _NOT_ON_HUB:
        raise MissingDatasetError(
            _NOT_ON_HUB[dataset], skippable_in_evaluation=dataset in _BEHIND_A_FORM
        )
    return _HUB_NAMES.get(dataset, dataset)


def open_split(
    dataset: str,
    subset: str | None,
    split: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
) -> Rows:
    """Returns the rows of a split of a dataset.

    Args:
      dataset, subset: names of 2021, as in `t0_datasets.csv`; others are taken as the hub's.
      split: the dataset's own name of it.
      data_dir: the mirror; None: the directory that the environment variable MTF_DATA_DIR names.
        What it does not have is looked for on the hub.

    Raises:
      MissingDatasetError: it is nowhere; says where it was looked for and how to get it.
      UserError: the mirror's file is damaged.
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
    return _open_hub(dataset, subset, split, f"{name}, split {split}, is missing: {tried}")


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


def _open_hub(dataset: str, subset: str | None, split: str, missing: str) -> Rows:
    mirror = "DIR/" + (f"{dataset}/{subset}" if subset else dataset) + f"/{split}.parquet"
    how = f"To use a copy of your own, put it at {mirror} and set {ENVIRONMENT_VARIABLE}=DIR"
    try:
        repository = hub_name(dataset)
    except MissingDatasetError as error:
        raise MissingDatasetError(
            f"{missing}; {error}. {how}", skippable_in_evaluation=error.skippable_in_evaluation
        ) from error
    try:
        hub = import_datasets("reading from the Hugging Face hub")
    except UserError as error:
        raise MissingDatasetError(f"{missing}; {error}. {how}") from error
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
        raise MissingDatasetError(
            f"{missing}; the Hugging Face hub does not give {repository} "
            f"({type(error).__name__}: {error}).{no_hub_hint()} {how}"
        ) from error
    return HubRows(rows)
