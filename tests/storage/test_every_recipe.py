"""Every recipe of `--list` runs with its default addresses, on servers of this machine.

A Google Cloud Storage emulator holds small checkpoints and vocabularies at the originals'
addresses. A Hugging Face hub holds C4, mC4, the Romanian corpus and all datasets of T0 and of mT0's
evaluation, with made-up records. A package index holds templates of our own in place of
promptsource's. Story Cloze is its authors' file, as docs/tasks.md says. The names of the files of
the Romanian corpus and of P3 are assumed. Only sizes are overridden. A recipe without default data
(it needs files, or a checkpoint to evaluate) gets the arguments that its page names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mtf.cli.cache import main as write_cache
from mtf.config.lookup import list_recipes
from mtf.data.sources import hub_stream
from mtf.data.tasks.prompts.templates import cached_archive
from mtf.data.text import vocabularies
from tests import small, stores
from tests.conversion import writers
from tests.sources import hub_server
from tests.storage import originals, prompted_hub
from tests.storage.conftest import Servers, forget_connections

T5 = "vocabs/cc_all.32000.100extra/sentencepiece.model"
MT5 = "vocabs/mc4.250000.100extra/sentencepiece.model"
ROMANIAN = "sentencepiece/ro.model"
STEPS = 3
# Mixture → its number of tasks. T0's are those of the paper's code with promptsource's templates;
# mT0's are 5 prompts for each of 42 languages.
NUM_TASKS = {
    "t0_train": 313,
    "t0+_train": 392,
    "t0++_train": 464,
    "t0_train_one_og_prompt": 35,
    "t0_train_all_og_prompts": 222,
    "mt5_d4_gpt_sglue_train": 464,
    "t0_eval_score_eval": 116,
    "mt0_score_eval": 210,
}


@dataclasses.dataclass(frozen=True)
class Run:
    """What a recipe must read, and what its command needs besides its name.

    Attributes:
      vocabulary: name of the vocabulary's object.
      checkpoint: the released checkpoint that it starts from or, with `arguments`, is given.
      arguments: arguments of the recipe, as on its page.
      streamed: the beginning of the names of files that it reads from the hub.
      mixture: the mixture of prompted tasks that it reads.
      cached: whether a cache of the mixture must be written first.
    """

    vocabulary: str | None = None
    checkpoint: str | None = None
    arguments: str = ""
    streamed: str | None = None
    mixture: str | None = None
    cached: bool = False


def _t0(mixture: str, checkpoint: str = "t5_1_1_lm100k_xxl") -> Run:
    return Run(T5, checkpoint, mixture=mixture, cached=True)


def _address(name: str) -> str:
    return f"gs://{originals.T5X}/{name}/checkpoint_{originals.RELEASED[name][0]}"


def _given(vocabulary: str, checkpoint: str, mixture: str | None, arguments: str = "") -> Run:
    arguments = f"checkpoint='{_address(checkpoint)}'{arguments}"
    return Run(vocabulary, checkpoint, arguments, mixture=mixture)


_C4 = Run(T5, streamed="en/c4-train")
TRAINED = {
    "quickstart": Run(),
    "pretrain_text": Run(),
    **{f"t5_1_1_{size}_c4": _C4 for size in ("small", "base", "large", "xl", "xxl")},
    "t5_1_1_finetune": Run(T5, "t5_1_1_small"),
    "finetune": _given(T5, "t5_1_1_small", None, ", train='train.tsv', vocabulary='t5'"),
    "continue_pretraining": _given(
        T5, "t5_1_1_small", None, ", files='inputs.txt', vocabulary='t5'"
    ),
    "t0pp_xxl": _t0("t0++_train"),
    "t0p_xxl": _t0("t0+_train"),
    "t0_xxl": _t0("t0_train"),
    "t0_3b": _t0("t0_train", "t5_1_1_lm100k_xl"),
    "t0_single_prompt_xxl": _t0("t0_train_one_og_prompt"),
    "t0_original_task_only_xxl": _t0("t0_train_all_og_prompts"),
    **{f"mt0_{x}": Run(MT5, f"mt5_{x}") for x in ("small", "base", "large", "xl", "xxl")},
    "mt0_xxl_mt": Run(MT5, "mt5_xxl"),
    "mt0_xxl_p3": Run(MT5, "mt5_xxl"),
    "mt0_t0pp": Run(MT5, "mt5_xxl", mixture="mt5_d4_gpt_sglue_train", cached=True),
    "mt5_lm_adapt": Run(MT5, "mt5_xxl", streamed="multilingual/c4-"),
    "ro_t5_base": Run(ROMANIAN, streamed="train"),
    "ro_t5_large": Run(ROMANIAN, streamed="train"),
    "ro_mt5_base": Run(MT5, "mt5_base", streamed="train"),
    "ro_mt5_large": Run(MT5, "mt5_large", streamed="train"),
}
EVALUATED = {
    "evaluate": _given(T5, "t5_1_1_lm100k_xl", "t0_eval_score_eval"),
    "t0_eval": _given(T5, "t5_1_1_lm100k_xxl", "t0_eval_score_eval"),
    "mt0_eval": _given(MT5, "mt5_xxl", "mt0_score_eval"),
}
INFERRED = {"infer": _given(T5, "t5_1_1_base", None, ", files='inputs.txt'")}
RUNS = {**TRAINED, **EVALUATED, **INFERRED}
LISTED = [listing.name.removeprefix("recipes.") for listing in list_recipes()]


def test_every_recipe_has_a_test() -> None:
    assert sorted([*RUNS, "cache", "convert"]) == sorted(LISTED)  # Those: tests/jobs/test_files.py


@pytest.fixture(scope="module")
def filled(running: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The buckets have the originals' checkpoints and vocabularies."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in stores.variables(running.gcs, running.s3).items():
            patch.setenv(name, value)
        forget_connections()
        originals.upload(tmp_path_factory.mktemp("uploaded"))
        forget_connections()
    _forget_what_was_read()
    yield
    _forget_what_was_read()


def _forget_what_was_read() -> None:
    """Forgets what has been read from addresses, at which other tests may have something else."""
    vocabularies._load_sentencepiece.cache_clear()
    vocabularies._sentencepiece_hash.cache_clear()
    hub_stream._load.cache_clear()


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hub_server.Server]:
    """A hub with the repositories that are streamed."""
    pytest.importorskip("datasets")
    with hub_server.serve(originals.write_hub(tmp_path_factory.mktemp("hub"))) as server:
        yield server


@pytest.fixture(scope="module")
def prompted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[hub_server.Server, Path, Path]]:
    """A hub with the datasets of prompted tasks, a folder, and promptsource's fetched sdist.

    The folder has Story Cloze in `mirror`, and gets the hub's downloads and the token caches.
    """
    pytest.importorskip("datasets")
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("prompted")
    prompted_hub.write_story_cloze(folder / "mirror")
    (folder / "caches").mkdir()
    templates = prompted_hub.fetch_templates(folder)
    with (
        pytest.MonkeyPatch.context() as patch,
        hub_server.serve(prompted_hub.write_hub(folder / "hub")) as server,
    ):
        prompted_hub.accept(templates, patch)
        yield server, folder, templates


@pytest.fixture
def start(
    request: pytest.FixtureRequest,
    servers: Servers,
    filled: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[str, Run], list[str]]]:
    """Prepares what a recipe reads; returns the beginning of its command line."""

    def prepare(name: str, run: Run) -> list[str]:
        for variable in ("MTF_DATA_DIR", "MTF_PROMPTS"):
            monkeypatch.delenv(variable, raising=False)
        originals.write_files(tmp_path)
        hub, downloads = hub_server.Server(), tmp_path / "hub"
        if run.streamed:
            hub = request.getfixturevalue("streamed")
        elif run.mixture:
            hub, folder, templates = request.getfixturevalue("prompted")
            downloads = folder / "hf"
            cached_archive().parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(templates, cached_archive())
            (tmp_path / "copies" / "tokens").symlink_to(folder / "caches")
            if run.mixture == "t0_eval_score_eval":
                monkeypatch.setenv("MTF_DATA_DIR", str(folder / "mirror"))
        hub.downloads.clear()
        if importlib.util.find_spec("huggingface_hub"):
            stack.enter_context(hub_server.use(hub, downloads, monkeypatch))
        _forget_what_was_read()
        stores.SERVED.clear()
        if run.mixture and run.cached:
            assert write_cache([run.mixture, "--num-workers", "1"]) == 0
        return [f"recipes.{name}({run.arguments})" if run.arguments else f"recipes.{name}", "--set"]

    with contextlib.ExitStack() as stack:
        yield prepare


def _sizes(run: Run, printed: str) -> dict[str, object]:
    """Returns the settings that make a recipe small; `printed` is its config, a setting a line."""
    original = dict(line.split(" = ", 1) for line in printed.splitlines() if " = " in line)
    sizes: dict[str, object] = {f"model.network.{k}": v for k, v in originals.NETWORK.items()}
    sizes |= {
        "model.network.vocab_size": 512,
        "batch_size": 8,
        "trainer.stats_period": 1,
        "checkpoint.save.period": STEPS,
        "num_samples": 0,
        "train_steps": _first_step(run) + STEPS,
        "data.task_feature_lengths.inputs": 64,
        "data.task_feature_lengths.targets": 32,
        "partitioner.num_partitions": 1,
    }
    if original["trainer.num_microbatches"] != "1":
        sizes["trainer.num_microbatches"] = 2
    if original["trainer.eval_period"] != "None":
        sizes |= {"trainer.eval_period": STEPS, "trainer.eval_steps": 1}
    if "evaluator.period" in original:
        sizes |= {"evaluator.period": STEPS, "evaluator.num_examples": 2}
    return sizes


def _first_step(run: Run) -> int:
    return 0 if run.checkpoint is None else originals.RELEASED[run.checkpoint][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_recipe_trains(
    name: str,
    start: Callable[[str, Run], list[str]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    run = TRAINED[name]
    command = start(name, run)
    printed = small.run([command[0], "--print", "all"], tmp_path)
    sizes = _sizes(run, printed)
    settings = [f"{setting}={value}" for setting, value in sizes.items()]
    small.run([*command, *settings, "model_dir=run"], tmp_path)
    first = _first_step(run)
    lines = small.read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [first + 1, first + 2, first + 3]
    assert all(0 < line["loss"] < math.inf for line in lines)
    assert small.steps(tmp_path / "run")[-1] == first + STEPS
    has_new_optimizer = name in ("finetune", "continue_pretraining")
    _assert_was_read(run, with_optimizer=not has_new_optimizer)
    if run.streamed:
        downloads = request.getfixturevalue("streamed").downloads
        assert any(file.startswith(run.streamed) for file in downloads)
    if run.mixture:
        found = json.loads((tmp_path / "run" / "data.json").read_text())
        assert found["mixture"] == run.mixture
        assert found["num_tasks"] == NUM_TASKS[run.mixture]
        assert found["missing_tasks"] == {}
        assert not run.cached or len(found["tasks"]) == NUM_TASKS[run.mixture]


@pytest.mark.slow
@pytest.mark.parametrize("name", EVALUATED)
def test_a_recipe_evaluates(
    name: str, start: Callable[[str, Run], list[str]], tmp_path: Path
) -> None:
    run = EVALUATED[name]
    sizes = [
        "batch_size=8",
        "partitioner.num_partitions=1",
        "data.task_feature_lengths.inputs=64",
        "data.task_feature_lengths.targets=32",
    ]
    small.run([*start(name, run), *sizes, "output_dir=results"], tmp_path)
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    accuracies = [task["metrics"]["accuracy"] for task in results["tasks"].values()]
    assert run.mixture is not None
    assert len(accuracies) == NUM_TASKS[run.mixture]
    assert all(0 <= accuracy <= 100 for accuracy in accuracies)
    assert results["step"] == _first_step(run)
    _assert_was_read(run, with_optimizer=False)


def test_infer(start: Callable[[str, Run], list[str]], tmp_path: Path) -> None:
    [(name, run)] = INFERRED.items()
    sizes = ["batch_size=4", "task_feature_lengths.inputs=64", "task_feature_lengths.targets=8"]
    small.run([*start(name, run), *sizes, "output_dir=results"], tmp_path)
    [file] = (tmp_path / "results").glob("inputs-predict.jsonl-00000-of-00001")
    assert len(file.read_text().splitlines()) == 4
    _assert_was_read(run, with_optimizer=False)


def _assert_was_read(run: Run, *, with_optimizer: bool) -> None:
    """Asserts which objects the emulator has sent: the vocabulary, and all arrays."""
    served = {name for name, _, _ in stores.SERVED}
    assert (run.vocabulary is None) or run.vocabulary in served
    if run.checkpoint is None:
        assert not any("checkpoint" in name for name in served)
        return
    folder = _address(run.checkpoint).removeprefix("gs://t5-data/")
    chunks = [
        name.removeprefix(f"{folder}/").partition("/")
        for name in served
        if name.startswith(f"{folder}/")
    ]
    assert ("checkpoint", "", "") in chunks
    arrays = {name for name, _, chunk in chunks if chunk and not chunk.startswith(".")}
    names = [
        name.replace("/", ".")
        for name in writers.random_parameters(**originals.NETWORK, vocab_size=1)
    ]
    expected = {f"target.{name}" for name in names}
    if with_optimizer:
        expected |= {f"state.param_states.{name}.v" for name in names}
    assert arrays == expected
