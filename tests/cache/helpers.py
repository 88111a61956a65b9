"""A small mirror of datasets of our own, and a mixture over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mtf.data.cache import build
from mtf.data.cache.reader import TokenCache
from mtf.data.settings import TaskMixtureConfig
from mtf.data.tasks.mixtures import Mixture
from mtf.data.tasks.prompted import PromptedTask
from mtf.data.tasks.task import Task
from mtf.data.tasks.text import TextTask
from mtf.data.text.vocabularies import ByteVocabulary
from tests.data.helpers import write_parquet
from tests.tasks.prompts.helpers import template

NUM_FRUIT, NUM_SUMS, NUM_TEXTS = 230, 90, 60
NAME = "small_mixture"
LENGTHS = {"inputs": 64, "targets": 32}


def fruit_rows() -> list[dict[str, Any]]:
    return [{"x": f"thing {i}{' and so' * (i % 5)}", "label": i % 2} for i in range(NUM_FRUIT)]


def sum_rows() -> list[dict[str, Any]]:
    return [{"a": i, "b": i * i, "easy": i % 3 != 0} for i in range(NUM_SUMS)]


def text_rows() -> list[dict[str, Any]]:
    return [{"text": f"{i:03d}" + chr(97 + i % 26) * (i % 40)} for i in range(NUM_TEXTS)]


FRUIT = PromptedTask(
    name="food_fruit",
    dataset="food",
    subset=None,
    template=template("Is {{ x }} a fruit? ||| {{ answer_choices[label] }}", "no ||| yes"),
)
# Rows that are not easy are left out.
SUMS = PromptedTask(
    name="math_sums",
    dataset="math",
    subset="sums",
    template=template("{% if easy %}{{ a }} and {{ b }} ||| {{ (a + b) }}{% endif %}"),
)
NOT_THERE = PromptedTask(
    name="gone_prompt", dataset="gone", subset=None, template=template("{{ x }} ||| {{ x }}")
)


def mixture(*tasks: tuple[Task, int | None]) -> Mixture:
    return Mixture(NAME, tasks or ((FRUIT, None), (SUMS, 60)))


def text_task(objective: Any, **fields: Any) -> TextTask:
    return TextTask(name="plain_text", dataset="texts", subset=None, objective=objective, **fields)


def write_mirror(root: Path) -> str:
    datasets = {
        "food/train": fruit_rows(),
        "food/validation": fruit_rows()[:20],
        "math/sums/train": sum_rows(),
        "texts/train": text_rows(),
        "texts/validation": text_rows()[:10],
    }
    for name, rows in datasets.items():
        write_parquet(root / f"{name}.parquet", rows, row_group_size=50)
    return str(root)


def settings(tmp_path: Path, **fields: Any) -> build.CacheConfig:
    data_dir = tmp_path / "mirror"
    if not data_dir.exists():
        write_mirror(data_dir)
    values: dict[str, Any] = {
        "cache_dir": tmp_path / "cache",
        "vocabulary": ByteVocabulary(),
        "data_dir": str(data_dir),
    }
    return build.CacheConfig(**(values | fields))


def write_cache(tmp_path: Path, of: Mixture | None = None, **fields: Any) -> Path:
    """Writes a cache; returns its directory."""
    chosen = settings(tmp_path, **fields)
    build.run(build.prepare(of or mixture(), chosen), 1, lambda _: None)
    return chosen.cache_dir


def examples(cache_dir: Path, task: str, split: str = "train") -> list[dict[str, list[Any]]]:
    """Returns the examples in a split of a cached task."""
    cache = TokenCache(cache_dir)
    reader = cache.split(cache.task(task), split)
    found = reader.examples(range(len(reader)))
    return [{name: value.tolist() for name, value in example.items()} for example in found]


def data(cache_dir: Path, **fields: Any) -> TaskMixtureConfig:
    values: dict[str, Any] = {
        "mixture_or_task_name": NAME,
        "vocabulary": ByteVocabulary(),
        "task_feature_lengths": LENGTHS,
        "cache_dir": str(cache_dir),
    }
    return TaskMixtureConfig(**(values | fields))
