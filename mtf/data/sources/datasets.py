"""Opens splits of datasets from a local mirror or the Hugging Face hub.

A mirror is a directory of files `DATASET[/SUBSET]/SPLIT.parquet`, where DATASET and SUBSET are the
names as of 2021. The files contain the columns that promptsource's templates expect, with
integer labels. TREC may instead have its current columns, and Story Cloze may be given as
`SPLIT.csv`, the file that its authors provide.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from mtf.base.downloads import as_user_errors, copied
from mtf.base.errors import NotCheckedError, UserError, did_you_mean_split
from mtf.base.extras import check_extra
from mtf.data.sources import story_cloze, trec
from mtf.data.sources.files import Part as Part
from mtf.data.sources.files import Rows as Rows
from mtf.data.sources.files import SlicedRows, in_memory, open_parquet, part_of
from mtf.data.sources.hub import import_datasets, is_available, no_hub_hint
from mtf.storage import AnyPath, as_path, is_remote

ENVIRONMENT_VARIABLE = "MTF_DATA_DIR"
# The dataset name of all tasks that the user's module registers with SeqIO.
SEQIO = "seqio"
DataDir: TypeAlias = str | os.PathLike[str] | None
_NUM_OPENED_AT_ONCE = 8
_PURPOSE = "reading from the Hugging Face hub"

# Current repositories on the hub. Tasks use their names without the owner.
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


class Source(NamedTuple):
    """The source of a split's records.

    Attributes:
      dataset, subset: names as of 2021 (see `t0_datasets.csv`) or on the hub. If there is no
        dataset, `dataset` is the kind of source, and `subset` contains the name of the task.
      split: name of the split in the dataset.
      maker: function that takes `split` and returns the records, or raises MissingDatasetError if
        there are none; None to read them from the dataset.
      part: part of the split to use; None for all records.
    """

    dataset: str
    subset: str | None
    split: str
    maker: Callable[[str], Rows] | None = None
    part: Part | None = None


class MissingDatasetError(UserError):
    """Raised if a dataset or a split is neither in the mirror nor on the hub.

    Attributes:
      skippable_in_evaluation: whether an evaluation skips the dataset and prints a message, because
        users must request the dataset with a form. In training, every missing dataset is an error.
    """

    def __init__(self, message: str, *, skippable_in_evaluation: bool = False):
        super().__init__(message)
        self.skippable_in_evaluation = skippable_in_evaluation


def hub_name(dataset: str) -> str:
    """Returns the current hub name for a dataset's name in 2021, and any other name unchanged.

    Raises MissingDatasetError if the dataset is known to be missing from the hub.
    """
    if dataset == "story_cloze":
        raise MissingDatasetError(
            f"Story Cloze is not on the hub; request it with the form at {story_cloze.FORM}",
            skippable_in_evaluation=True,
        )
    return _HUB_NAMES.get(dataset, dataset)


def open_split(
    dataset: str,
    subset: str | None,
    split: str,
    maker: Callable[[str], Rows] | None = None,
    part: Part | None = None,
    *,
    data_dir: DataDir = None,
    download: bool = True,
) -> Rows:
    """Returns the records of a split from the mirror or, if it lacks the split, from the hub.

    Args:
      dataset, subset, split, maker, part: see `Source`.
      data_dir: path of the mirror; None to use the environment variable MTF_DATA_DIR.
      download: whether to download a dataset from the hub. If False, NotCheckedError is raised if
        the mirror lacks the split and the hub can be reached.

    If the split is not found, raises a MissingDatasetError that lists the places searched.
    """
    if part is not None:
        whole = Source(dataset, subset, split, maker)
        return part_of(open_split(*whole, data_dir=data_dir, download=download), part)
    if maker is not None:
        return maker(split)
    rows = _open_anywhere(dataset, subset, split, data_dir, download)
    if dataset != "trec":
        return rows
    return SlicedRows(len(rows), lambda i, j: map(trec.as_in_2021, rows.rows(i, j)))


def _open_anywhere(
    dataset: str, subset: str | None, split: str, data_dir: DataDir, download: bool
) -> Rows:
    name = f"{dataset}/{subset}" if subset else dataset
    with as_user_errors("data_dir"):
        folder = _mirror_folder(dataset, subset, data_dir)
        there = set() if folder is None else {each.name for each in _files(folder)}
    if folder is None:
        tried = f"there is no local mirror ({ENVIRONMENT_VARIABLE} is not set)."
    else:
        path = folder / f"{split}.parquet"
        if path.name in there:
            return open_parquet(copied(path, "data_dir"))
        if dataset == "story_cloze" and f"{split}.csv" in there:
            return in_memory(story_cloze.read_csv(copied(folder / f"{split}.csv", "data_dir")))
        tried = f"the local mirror does not contain {path}."
        if there:
            kinds = (".parquet", ".csv") if dataset == "story_cloze" else (".parquet",)
            splits = sorted({file.rpartition(".")[0] for file in there if file.endswith(kinds)})
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
    """Returns a dict mapping each source to its records or to the error that `open_split` raised.

    Several sources are opened concurrently, because the hub is slow to report that a dataset is
    missing. See `open_split` for the arguments.
    """

    def opened(source: Source) -> Rows | MissingDatasetError | NotCheckedError:
        try:
            return open_split(*source, data_dir=data_dir, download=download)
        except (MissingDatasetError, NotCheckedError) as error:
            return error

    from concurrent.futures import ThreadPoolExecutor  # Not needed to show a recipe.

    unique = list(dict.fromkeys(sources))
    with ThreadPoolExecutor(_NUM_OPENED_AT_ONCE) as pool:
        return dict(zip(unique, pool.map(opened, unique), strict=True))


def check_downloaded(name: str, opened: Sequence[Rows | UserError]) -> None:
    """Raises NotCheckedError if any dataset of a mixture would have to be read from the hub."""
    number = sum(isinstance(rows, NotCheckedError) for rows in opened)
    if number:
        raise NotCheckedError(
            f"the datasets of {number} of the {len(opened)} tasks in {name} are on the Hugging "
            "Face hub"
        )


def mirror_has(source: Source, data_dir: DataDir = None) -> bool | None:
    """Returns whether the mirror contains a split, or None if it does not contain the dataset."""
    folder = _mirror_folder(source.dataset, source.subset, data_dir)
    names = {file.name for file in _files(folder)} if folder else None
    return f"{source.split}.parquet" in names if names else None


def _mirror_folder(dataset: str, subset: str | None, data_dir: DataDir) -> AnyPath | None:
    root = data_dir or os.environ.get(ENVIRONMENT_VARIABLE)
    return as_path(root) / dataset / (subset or "") if root else None


@functools.lru_cache(maxsize=256)
def _listed(folder: AnyPath) -> tuple[AnyPath, ...]:
    return tuple(folder.iterdir()) if folder.is_dir() else ()


def _files(folder: AnyPath) -> Sequence[AnyPath]:
    """Returns the entries of a directory, or () if it does not exist; caches remote entries."""
    return _listed(folder) if is_remote(folder) else _listed.__wrapped__(folder)


@functools.lru_cache(maxsize=512)
def _open_hub(dataset: str, subset: str | None, split: str) -> Rows:
    """Returns the records of a split on the hub; requests each split only once."""
    repository = hub_name(dataset)
    hub = import_datasets(_PURPOSE)
    try:
        try:
            rows = hub.load_dataset(repository, subset, split=split)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            # This branch contains the first 5 GB that the dataset's script generated.
            files = f"hf://datasets/{repository}@refs/convert/parquet/{subset or '*'}/{split}"
            rows = hub.load_dataset("parquet", data_files=f"{files}/*.parquet", split="train")
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the Hugging Face hub cannot provide {repository} ({type(error).__name__}: {error})."
            f"{no_hub_hint()}"
        ) from error
    return SlicedRows(len(rows), lambda i, j: rows.select(range(len(rows))[i:j]))
