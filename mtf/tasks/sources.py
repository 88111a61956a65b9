"""Where the rows of datasets come from: a local mirror, else the Hugging Face hub.

A mirror is a directory of `DATASET[/SUBSET]/SPLIT.parquet`, under the names that the datasets had
in 2021, with the columns that promptsource's templates expect (class labels are integers).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from mtf.errors import UserError, did_you_mean
from mtf.prompts.extras import import_extra

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
    "kilt_tasks": "facebook/kilt_tasks",
    "multi_news": "alexfabbri/multi_news",
    "multi_nli": "nyu-mll/multi_nli",
    "openbookqa": "allenai/openbookqa",
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
    "xsum": "EdinburghNLP/xsum",
    "yelp_review_full": "Yelp/yelp_review_full",
}
# What the hub does not have as it was in 2021.
_NOT_ON_HUB = {
    "story_cloze": f"Story Cloze is given out through a form: {_STORY_CLOZE_FORM}",
    "trec": "the hub's CogComp/trec has other columns and other numbers for its classes since 2022,"
    " which promptsource's templates would read wrongly",
}


class MissingDatasetError(UserError):
    """A dataset, or a split of it, is neither in the mirror nor on the hub."""


class Rows(Protocol):
    """The rows of a split: as many as `len`, each time from the first."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, Any]]: ...


class ParquetRows:
    """The rows of a Parquet file, as Python values; a thousand are in memory at a time."""

    def __init__(self, path: Path):
        """Raises UserError where the file is not Parquet."""
        self.path = path
        self._num_rows = int(self._open().metadata.num_rows)

    def __len__(self) -> int:
        return self._num_rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._open().iter_batches(batch_size=1000):
            yield from batch.to_pylist()

    def _open(self) -> Any:
        parquet = import_extra("pyarrow.parquet", "reading Parquet files")
        pyarrow = import_extra("pyarrow", "reading Parquet files")
        try:
            return parquet.ParquetFile(self.path)
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise UserError(f"{self.path} is not a Parquet file: {error}") from error


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
    root = data_dir or os.environ.get(ENVIRONMENT_VARIABLE)
    name = f"{dataset}/{subset}" if subset else dataset
    if root is None:
        tried = f"no mirror is named: {ENVIRONMENT_VARIABLE} is not set"
    else:
        folder = Path(root).expanduser() / name
        path = folder / f"{split}.parquet"
        if path.is_file():
            return ParquetRows(path)
        tried = f"the mirror has no {path}"
        if folder.is_dir():
            splits = sorted(file.stem for file in folder.glob("*.parquet"))
            tried += f", only {', '.join(splits) or 'no splits'}.{did_you_mean(split, splits)}"
    return _open_hub(dataset, subset, split, f"{name}, split {split}, is missing: {tried}")


def _open_hub(dataset: str, subset: str | None, split: str, missing: str) -> Rows:
    mirror = "DIR/" + (f"{dataset}/{subset}" if subset else dataset) + f"/{split}.parquet"
    how = f"To use a copy of your own, put it at {mirror} and set {ENVIRONMENT_VARIABLE}=DIR"
    if dataset in _NOT_ON_HUB:
        raise MissingDatasetError(f"{missing}; {_NOT_ON_HUB[dataset]}. {how}")
    repository = _HUB_NAMES.get(dataset, dataset)
    try:
        hub = import_extra("datasets", "reading from the Hugging Face hub")
    except UserError as error:
        raise MissingDatasetError(f"{missing}; {error}. {how}") from error
    try:
        try:
            rows: Rows = hub.load_dataset(repository, subset, split=split)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            # The hub keeps what a dataset's script made of its first 5 GB on a branch of its own.
            files = f"hf://datasets/{repository}@refs/convert/parquet/{subset or '*'}/{split}"
            rows = hub.load_dataset("parquet", data_files=f"{files}/*.parquet", split="train")
    except (OSError, ValueError, RuntimeError) as error:
        raise MissingDatasetError(
            f"{missing}; the Hugging Face hub does not give {repository} "
            f"({type(error).__name__}: {error}). {how}"
        ) from error
    return rows
