"""The examples of custom tasks in docs/tasks.md: runs its files and commands.

Only the sizes and the number of steps are smaller.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtf.cli.cache import main as cache_main
from mtf.cli.data import main as data_main
from mtf.cli.run import main as run_main
from mtf.data.sources.datasets import open_split
from mtf.data.tasks import registry
from tests import small
from tests.data.helpers import write_parquet

PAGE = (small.ROOT / "docs" / "tasks.md").read_text("utf-8")
NETWORK = {name: value for name, value in small.SETTINGS.items() if name.startswith("model.")}
MAINS = {"mtf.run": run_main, "mtf.cache": cache_main, "mtf": data_main}
FILE = re.compile(r"`([\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)^```", re.M | re.S)


def section(title: str) -> str:
    """Returns the text below a heading, up to the next one."""
    return PAGE.split(f"### {title}\n")[1].split("\n### ")[0]


def commands(title: str) -> list[list[str]]:
    """Returns the arguments of each command of a section, with its continuation lines."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", section(title), re.M | re.S):
        if not language:
            found += [line for line in re.split(r"^(?=python )", block, flags=re.M) if line]
    return [shlex.split(text.replace("\\\n", " ")) for text in found if text.startswith("python")]


def write_files(title: str) -> None:
    for name, content in FILE.findall(section(title)):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)


def run(command: list[str]) -> None:
    _, _, module, *arguments = [word for word in command if word != "data"]
    if arguments[0] == "recipes.pretrain_text":
        sizes = {**NETWORK, "train_steps": 2, "batch_size": 4, "num_samples": 0}
        sizes |= {"trainer.stats_period": 1, "trainer.eval_period": 2, "trainer.eval_steps": 1}
        arguments += [f"{name}={value}" for name, value in sizes.items()]
        if any(argument.startswith("evaluator=") for argument in arguments):
            arguments += ["evaluator.period=2", "evaluator.num_examples=2"]
    if module == "mtf.cache":
        arguments += ["--num-workers", "1"]
    assert MAINS[module](arguments) == 0, command


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs in an empty directory, with an empty registry."""
    monkeypatch.setattr(registry, "_REGISTRY", type(registry._REGISTRY)())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MTF_DATA_DIR", str(tmp_path / "mirror"))
    yield
    for name in ("my_tasks", "my_seqio"):
        sys.modules.pop(name, None)


def write_mirror(datasets_dir: Path) -> None:
    """Writes a mirror with questions and (under two names) reviews, and a file of reviews."""
    copies = {"trec": ["trec"], "rotten_tomatoes": ["rotten_tomatoes", "rotten_tomatoes_plain"]}
    for name, targets in copies.items():
        for split, number in (("train", 60), ("validation", 8)):
            rows = list(open_split(name, None, split, data_dir=datasets_dir).rows(0, number))
            for target in targets:
                write_parquet(Path("mirror", target, f"{split}.parquet"), rows)
    rows = list(open_split("rotten_tomatoes", None, "train", data_dir="mirror"))
    lines = [json.dumps({"review": row["text"], "stars": 1 + 4 * row["label"]}) for row in rows]
    Path("reviews.jsonl").write_text("\n".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "expected"),
    [
        (
            "A dataset or files, without code",
            {"cache/files/info.json": 60, "reviews/config.json": None},
        ),
        (
            "A function in Python",
            {"cache_of_questions/questions/info.json": 60, "questions/config.json": None},
        ),
        (
            "Prompts of your own",
            {"cache_of_prompts/rotten_tomatoes_plain_Good_or_bad/info.json": 60},
        ),
    ],
)
def test_the_pages_examples_run(
    title: str, expected: dict[str, int | None], datasets_dir: Path
) -> None:
    write_mirror(datasets_dir)
    write_files(title)
    for command in commands(title):
        run(command)
    for name, num_examples in expected.items():
        stored = Path(name).read_text()
        if num_examples is not None:
            assert json.loads(stored)["splits"]["train"]["num_examples"] == num_examples
    if title == "A function in Python":
        assert '"my_tasks"' in Path("questions/config.json").read_text()
        (report,) = Path("runs").glob("evaluate-*/results.json")
        assert json.loads(report.read_text())["tasks"]["questions"]["num_examples"] == 8
    shutil.rmtree("runs", ignore_errors=True)


def test_the_pages_seqio_example_runs() -> None:
    pytest.importorskip("seqio")
    write_files("SeqIO tasks")
    Path("numbers.txt").write_text("\n".join(map(str, range(20))))
    for command in commands("SeqIO tasks"):
        if "t5.data.mixtures" not in command:
            run(command)
    info = json.loads(Path("cache_of_doubled/doubled/info.json").read_text())
    assert info["splits"]["train"]["num_examples"] == 20
    assert Path("doubled/config.json").is_file()
