"""Opens splits of datasets, from a local mirror or else from the Hugging Face hub.

A mirror is a directory with files `DATASET[/SUBSET]/SPLIT.parquet`. They have the names that the
datasets had in 2021, and the columns that promptsource's templates expect, with integer labels.
TREC may also have today's columns; Story Cloze may also be its authors' CSV file, as `SPLIT.csv`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from mtf.downloads import as_user_errors, copied
from mtf.errors import NotCheckedError, UserError, did_you_mean_split
from mtf.extras import check_extra
from mtf.sources import story_cloze, trec
from mtf.sources.files import ParquetRows, open_files
from mtf.sources.files import Rows as Rows
from mtf.sources.hub import import_datasets, is_available, no_hub_hint
from mtf.storage import AnyPath, StorePath, as_path

ENVIRONMENT_VARIABLE = "MTF_DATA_DIR"
# Name of the dataset of a task that reads local files. The subset is the name of the task, and the
# dataset's name of a split is a path or pattern.
FILES = "files"
# The same, if TSV files have no header: their columns are `inputs` and `targets`.
PAIRS = "file_pairs"
LOCAL = (FILES, PAIRS)
# Name of a dataset → function from subset and split to its records; `mtf.seqio.own` adds one.
OPENERS: dict[str, Callable[[str | None, str], Rows]] = {}
DataDir: TypeAlias = str | os.PathLike[str] | None
# Dataset, subset and the dataset's name of a split.
Source: TypeAlias = tuple[str, str | None, str]
_NUM_OPENED_AT_ONCE = 8
_PURPOSE = "reading from the Hugging Face hub"

# Today's repositories on the hub. Most have the dataset's name of 2021 after the owner's.
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
    *("CogComp/trec", "Yelp/yelp_review_full", "Muennighoff/xstory_cloze"),
    *("Muennighoff/xwinograd", "oscar-corpus/oscar"),
)
_HUB_NAMES = {repository.partition("/")[2]: repository for repository in _REPOSITORIES} | {
    "mc4": "allenai/c4",
    "opus100": "Helsinki-NLP/opus-100",
}


class MissingDatasetError(UserError):
    """A dataset, or a split of it, is neither in the mirror nor on the hub.

    Attributes:
      skippable_in_evaluation: whether evaluation leaves the dataset out with a message, because it
        is available only through a form. In training, it is always an error.
    """

    def __init__(self, message: str, *, skippable_in_evaluation: bool = False):
        super().__init__(message)
        self.skippable_in_evaluation = skippable_in_evaluation


class _RecordRows(Rows):
    """Records in memory."""

    def __init__(self, records: Sequence[dict[str, Any]]):
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        return iter(self._records[start:stop])


class _ChangedRows(Rows):
    """The records of other rows, each passed through a function."""

    def __init__(self, rows: Rows, change: Callable[[dict[str, Any]], dict[str, Any]]):
        self._rows = rows
        self._change = change

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        return map(self._change, self._rows.rows(start, stop))


class _HubRows(Rows):
    """The records of a `datasets.Dataset`."""

    def __init__(self, dataset: Any):
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        return iter(self._dataset.select(range(len(self))[start:stop]))


def hub_name(dataset: str) -> str:
    """Returns today's name on the hub of a dataset of 2021; other names are returned unchanged.

    Raises MissingDatasetError if the hub does not have the dataset.
    """
    if dataset == "story_cloze":
        raise MissingDatasetError(
            f"Story Cloze is not on the hub; request it with the form at {story_cloze.FORM}",
            skippable_in_evaluation=True,
        )
    return _HUB_NAMES.get(dataset, dataset)


def open_split(
    dataset: str, subset: str | None, split: str, *, data_dir: DataDir = None, download: bool = True
) -> Rows:
    """Returns the records of a split, from the mirror or else from the hub.

    Args:
      dataset, subset: names of 2021, as in `t0_datasets.csv`, or on the hub; or one of `LOCAL`.
      split: the dataset's name of the split.
      data_dir: the mirror; None: the environment variable MTF_DATA_DIR.
      download: whether to download a dataset from the hub. False: raises NotCheckedError if the
        mirror lacks the split and the hub can be reached.

    Raises MissingDatasetError, which says what was tried, if neither has the split.
    """
    if dataset in LOCAL:
        try:
            return open_files(split, ("inputs", "targets") if dataset == PAIRS else None)
        except UserError as error:
            raise MissingDatasetError(str(error)) from error
    rows = _open_anywhere(dataset, subset, split, data_dir, download)
    return _ChangedRows(rows, trec.as_in_2021) if dataset == "trec" else rows


def _open_anywhere(
    dataset: str, subset: str | None, split: str, data_dir: DataDir, download: bool
) -> Rows:
    if dataset in OPENERS:
        return OPENERS[dataset](subset, split)
    name = f"{dataset}/{subset}" if subset else dataset
    with as_user_errors("data_dir"):
        folder = _mirror_folder(dataset, subset, data_dir)
        there = set() if folder is None else {each.name for each in _files(folder)}
    if folder is None:
        tried = f"there is no local mirror ({ENVIRONMENT_VARIABLE} is not set)."
    else:
        path = folder / f"{split}.parquet"
        if path.name in there:
            return ParquetRows(copied(path, "data_dir"))
        if dataset == "story_cloze" and f"{split}.csv" in there:
            return _RecordRows(story_cloze.read_csv(copied(folder / f"{split}.csv", "data_dir")))
        tried = f"the local mirror has no {path}."
        if there:
            splits = mirror_splits(dataset, subset, data_dir)
            tried = f"{tried[:-1]}; available splits: {', '.join(splits) or 'none'}."
            tried += did_you_mean_split(split, splits)
    missing = f"{name}, split {split}, is missing: {tried}"
    copy = f"To use a local copy, put it at DIR/{name}/{split}.parquet"
    if dataset == "story_cloze" and split in story_cloze.FILES:
        copy = f"Put the file {story_cloze.FILES[split]!r} at DIR/{name}/{split}.csv"
    try:
        hub_name(dataset)
        check_extra("datasets", _PURPOSE)
        if download or not is_available():
            return _open_hub(dataset, subset, split)
    except UserError as error:
        reason = str(error).rstrip(".")
        raise MissingDatasetError(
            f"{missing} {reason[0].upper()}{reason[1:]}. {copy} and set {ENVIRONMENT_VARIABLE}=DIR",
            skippable_in_evaluation=getattr(error, "skippable_in_evaluation", False),
        ) from error
    raise NotCheckedError(f"{name}, split {split}, comes from the Hugging Face hub")


def open_all(
    sources: Iterable[Source], *, data_dir: DataDir = None, download: bool = True
) -> dict[Source, Rows | MissingDatasetError | NotCheckedError]:
    """Returns the records of each split (dataset, subset, split), or the reason it is missing.

    Opens several at a time, because the hub is slow to report that a dataset is missing. The
    arguments are those of `open_split`, whose errors are returned.
    """

    def opened(source: Source) -> Rows | MissingDatasetError | NotCheckedError:
        try:
            return open_split(*source, data_dir=data_dir, download=download)
        except (MissingDatasetError, NotCheckedError) as error:
            return error

    different = list(dict.fromkeys(sources))
    with ThreadPoolExecutor(_NUM_OPENED_AT_ONCE) as pool:
        return dict(zip(different, pool.map(opened, different), strict=True))


def check_downloaded(name: str, opened: Sequence[Rows | UserError]) -> None:
    """Raises NotCheckedError if some of the datasets of a mixture's tasks are on the hub."""
    number = sum(isinstance(rows, NotCheckedError) for rows in opened)
    if number:
        raise NotCheckedError(
            f"the datasets of {number} of the {len(opened)} tasks of {name} are on the Hugging "
            "Face hub"
        )


def mirror_splits(dataset: str, subset: str | None, data_dir: DataDir = None) -> list[str]:
    """Returns the names of a dataset's splits in the mirror; `data_dir` as in `open_split`."""
    folder = _mirror_folder(dataset, subset, data_dir)
    kinds = (".parquet", ".csv") if dataset == "story_cloze" else (".parquet",)
    return sorted({file.stem for file in _files(folder) if file.suffix in kinds}) if folder else []


def mirror_has(source: Source, data_dir: DataDir = None) -> bool | None:
    """Returns whether the mirror has a split; None if it lacks the dataset, or there is none."""
    dataset, subset, split = source
    folder = _mirror_folder(dataset, subset, data_dir)
    names = {file.name for file in _files(folder)} if folder else None
    return f"{split}.parquet" in names if names else None


def _mirror_folder(dataset: str, subset: str | None, data_dir: DataDir) -> AnyPath | None:
    root = data_dir or os.environ.get(ENVIRONMENT_VARIABLE)
    return as_path(root) / dataset / (subset or "") if root else None


@functools.lru_cache(maxsize=256)
def _listed(folder: StorePath) -> tuple[StorePath, ...]:
    return tuple(folder.iterdir()) if folder.is_dir() else ()


def _files(folder: AnyPath) -> Sequence[AnyPath]:
    """Returns what is in a folder, which need not exist; asks a store once."""
    if isinstance(folder, StorePath):
        return _listed(folder)
    return tuple(folder.iterdir()) if folder.is_dir() else ()


@functools.lru_cache(maxsize=512)
def _open_hub(dataset: str, subset: str | None, split: str) -> Rows:
    """Returns the records of a split; asks the hub once in each process."""
    repository = hub_name(dataset)
    hub = import_datasets(_PURPOSE)
    try:
        try:
            rows = hub.load_dataset(repository, subset, split=split)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            # A branch on the hub holds the first 5 GB that the dataset's script generated.
            files = f"hf://datasets/{repository}@refs/convert/parquet/{subset or '*'}/{split}"
            rows = hub.load_dataset("parquet", data_files=f"{files}/*.parquet", split="train")
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the Hugging Face hub cannot provide {repository} ({type(error).__name__}: {error})."
            f"{no_hub_hint()}"
        ) from error
    return _HubRows(rows)
