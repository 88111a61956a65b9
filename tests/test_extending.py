"""The code and the commands of docs/extending.md, in a folder that is not the project's."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import conversion
import mtf
from conversion.formats import FORMATS
from mtf import config as config_lib
from mtf.base.errors import UserError
from mtf.cli import cache
from mtf.cli.convert.command import main as convert
from mtf.cli.plan.command import main as plan
from mtf.config import apply_overrides
from mtf.partitioning import memory
from mtf.partitioning.chips import CHIPS
from mtf.t5x.unsupported import is_of_t5x
from mtf.training.flops import peak_flops
from tests.small import ROOT, SETTINGS, assert_same_end, python, read_metrics, run, write_text

_PAGE = (ROOT / "docs" / "extending.md").read_text()
_BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", _PAGE, re.MULTILINE | re.DOTALL)
_CODE = "\n".join(text for kind, text in _BLOCKS if kind == "python")


def _commands(program: str) -> list[list[str]]:
    """The arguments of the page's commands of a program."""
    texts = [text.replace("\\\n", " ") for kind, text in _BLOCKS if not kind]
    return [shlex.split(x) for t in texts for x in t.split(f"python -m {program} ")[1:]]


_COMMANDS = _commands("mtf.run")


_MISTAKEN = """
import optax
import jax.numpy as jnp

def branching(step):
    return 0.1 if step < 10 else 0.01

def shaped(step):
    return jnp.ones(2)

def mean_loss(logits, batch, weights):
    return logits.mean(axis=-1), {}

def only_loss(logits, batch, weights):
    return logits.sum()

def no_state(shard_index, shard_count):
    return [{"inputs": "a", "targets": "b"}]

def two(targets, predictions):
    return {"a": 1}

def nothing(shard_index, shard_count):
    return None

def three() -> optax.GradientTransformation:
    return 3

def own(beta1: float = 0.9) -> optax.GradientTransformation:
    return optax.sgd(0.1, beta1)
"""

_EVALUATION = """
import fiddle as fdl
import my_parts
import recipes
from mtf.evaluation import RankFilesConfig
from mtf.jobs import Evaluate

def my_evaluation(checkpoint: str) -> fdl.Config[Evaluate]:
    config = recipes.evaluate(checkpoint)
    config.data = fdl.Config(
        RankFilesConfig,
        files="rank.jsonl",
        vocabulary=my_parts.my_recipe().data.vocabulary,
        task_feature_lengths={"inputs": 64, "targets": 16},
    )
    return config
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the page's `my_parts.py`, as a user's working directory."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "my_parts.py").write_text(_CODE)
    (folder / "mistaken.py").write_text(_MISTAKEN)
    (folder / "my_evaluation.py").write_text(_EVALUATION)
    ranked = {"inputs": "one two", "choices": ["three", "four"], "label": 1}
    (folder / "rank.jsonl").write_text(json.dumps(ranked))
    write_text(folder)
    for split, number in (("train", 40), ("validation", 5)):
        (folder / "pages" / split).mkdir(parents=True)
        for index in range(number):
            page = {"title": f"page {index}", "text": f"{split} {index}: " + "words and words " * 5}
            (folder / "pages" / split / f"{index:03}.json").write_text(json.dumps(page))
    formats, chips = [*FORMATS], [*CHIPS]
    sys.path.insert(0, str(folder))
    with contextlib.chdir(folder):
        for arguments in _commands("mtf.cache"):
            assert cache.main([*arguments, "--num-workers", "1"]) == 0
    yield folder
    sys.path.remove(str(folder))
    for name in ("my_parts", "mistaken", "my_evaluation"):
        sys.modules.pop(name, None)
    FORMATS[:], CHIPS[:] = formats, chips


def small(*, own_data: bool = False, **settings: object) -> list[str]:
    """Settings of a run of two layers that ends after six steps."""
    values = {**SETTINGS, "data.files": "text.txt", "train_steps": 6, **settings}
    values.pop("optimizer")
    if own_data:
        values = {name: value for name, value in values.items() if not name.startswith("data.")}
    return [f"{name.replace('__', '.')}={value}" for name, value in values.items()]


def test_the_page_has_all_parts() -> None:
    assert [command[0] for command in _COMMANDS].count("recipes.pretrain_text") >= 5
    assert "my_parts.py:my_recipe" in [command[0] for command in _COMMANDS]


@pytest.mark.parametrize("command", _COMMANDS, ids=" ".join)
def test_a_command_of_the_page(command: list[str], folder: Path) -> None:
    """Its config prints, can be loaded and compared, and its job can start."""
    own_data = "data=@" in str(command) or command == ["my_parts.py:my_recipe"]
    changes = ["--set", *small(own_data=own_data)]
    if "data.objective=" in str(command):
        changes = [each for each in changes if not each.startswith("data.objective.")]
    assert "runs" in run([*command, *changes, "--dry-run"], folder)
    flat = run([*command, *changes, "--print", "all"], folder)
    assert re.search(r"^[\w.]+ = .*\b(my_parts|optax)\b", flat, re.MULTILINE)
    assert "(command line)" in run([*command, *changes, "--print", "history"], folder)

    assert json.loads(run([*command, *changes, "--print", "json"], folder))["train_steps"] == 6

    code: dict[str, Any] = {"__name__": "code"}
    exec(run([*command, *changes, "--print", "python"], folder), code)
    (folder / "config.json").write_text(config_lib.dump_json(code["config"]()))
    assert run([*command, *changes, "--diff", "config.json"], folder).endswith(": the same\n")
    assert config_lib.as_flat_text(config_lib.load_config(folder / "config.json")) == flat


@pytest.mark.slow
def test_a_run_of_all_parts_resumes_bit_for_bit(folder: Path) -> None:
    changes = small(own_data=True, checkpoint__save__period=3, trainer__eval_period=3)
    changes.append("evaluator.period=3")
    recipe = ["my_parts.py:my_recipe", "--set", *changes]
    run([*recipe, "model_dir=whole"], folder)
    run([*recipe, "model_dir=parts", "train_steps=3"], folder)
    run(["--from", "parts", "--set", "train_steps=6"], folder)
    assert_same_end(folder / "parts", folder / "whole", 6)
    last = read_metrics(folder / "whole")[-1]
    decoded = read_metrics(folder / "whole", "inference_eval/held_out")
    assert [line["step"] for line in decoded] == [3, 6]
    assert all(0 <= line["first_word"] <= 100 for line in decoded)
    assert decoded == read_metrics(folder / "parts", "inference_eval/held_out")
    assert 0 < last["loss"] < last["loss_fn/cross_entropy"]  # A focal loss is smaller.
    # The warm-up of 100 steps: the sixth step has the learning rate after five.
    assert last["learning_rate"] == pytest.approx(1e-4 * 5 / 100)

    changed = run(
        ["--from", "whole", "--set", "train_steps=9", "optimizer.warmup_steps=9"], folder, status=2
    )
    assert "optimizer.warmup_steps: 100 → 9" in changed
    refused = run([*recipe, "--engine", "t5x", "--print", "flat"], folder, status=2)
    for part in ("optimizer = @clipped_lion", "model.loss_fn is set", "data = @CustomDataConfig"):
        assert part in refused


@pytest.mark.slow
def test_a_format_with_the_state_of_an_own_optimizer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that starts from the `.npz` file is the same as one that starts from mtf's files."""
    monkeypatch.chdir(folder)
    recipe = ["my_parts.py:my_recipe", "--set", *small(own_data=True, train_steps=2)]
    run([*recipe, "model_dir=first"], folder)
    npz, module = ["exported", "--to", "npz"], ["--module", "my_parts"]
    assert convert(["first", *npz, *module]) == 0
    said = capsys.readouterr().out
    stored = np.load("exported/checkpoint_2/arrays.npz")
    slots = {name for name in stored if name.startswith("state/param_states/")}
    momentum = "state/param_states/1/inner_state/0/mu/decoder/layers_0/mlp/wo/kernel"
    assert momentum in slots
    assert f"Optimizer state: kept ({len(slots)} tensors), step 2" in said
    assert "one .npz file" in said
    for name, tensor in conversion.open_checkpoint("first").tensors.items():
        assert np.array_equal(stored[name], tensor.read())

    assert convert(["exported", "for_t5x", "--to", "t5x", *module]) == 0
    assert convert(["--compare", "first", "for_t5x"]) == 0
    assert convert(["--compare", "first", "exported", *module]) == 0
    assert convert(["exported", "for_hf", "--to", "hf", "--vocabulary", "byt5", *module]) == 0
    assert "Source: `exported/checkpoint_2` (NumPy, step 2)" in Path("for_hf/README.md").read_text()
    assert convert(["for_hf", "from_hf", "--to", "npz", *module]) == 0
    assert convert(["--compare", "first", "from_hf", *module]) == 0

    def further(path: str, name: str) -> list[str]:
        start = f"checkpoint.restore=@mtf.checkpoints.RestoreCheckpointConfig(path={path!r})"
        return [*recipe, "train_steps=4", start, f"model_dir={name}"]

    said = run([*further("exported", "from_npz"), "--dry-run"], folder)
    assert "exported/checkpoint_2 (npz, step 2)" in said
    refused = run([*further("exported", "t5x"), "--engine", "t5x"], folder, status=2)
    assert "optimizer = @clipped_lion: with T5X, mtf supports only AdafactorConfig" in refused
    assert not is_of_t5x(conversion.open_checkpoint("exported"))
    assert is_of_t5x(conversion.open_checkpoint("first"))
    run(further("exported", "from_npz"), folder)
    run(further("first", "from_mtf"), folder)
    assert convert(["--compare", "from_npz", "from_mtf"]) == 0
    assert read_metrics(folder / "from_npz") == read_metrics(folder / "from_mtf")

    texts = [mtf.load(path, config="first").generate(["one two"]) for path in ("first", "exported")]
    assert texts[0] == texts[1]
    evaluation = ["my_evaluation.py:my_evaluation(checkpoint='exported')"]
    assert "accuracy" in run([*evaluation, "--set", "output_dir=ranked"], folder)


def test_a_format_is_unknown_without_its_module(folder: Path) -> None:
    command = ["-m", "mtf.convert", "nowhere", "exported", "--to", "npz"]
    done = python(*command, cwd=folder, status=2)
    assert done.stdout == ""
    assert "--to: expected one of hf, t5x, t5x_orbax, mtf, peft, got npz." in done.stderr
    done = python(*command, "--module", "my_part", cwd=folder, status=2)
    assert done.stdout == ""
    assert "--module: there is no module my_part" in done.stderr
    assert "Did you mean my_parts" in done.stderr


def test_a_chip(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    if importlib.util.find_spec("libtpu") is None:
        assert plan(["my_parts.py:my_recipe", "--target", "tpu9:2x2"]) == 2
        assert "compiling for this target requires the package libtpu" in capsys.readouterr().err
    assert plan(["my_parts.py:my_recipe", "--target", "tpu9:2x8"]) == 2
    assert "tpu9 has no slice 2x8; expected one of 2x2, 4x4" in capsys.readouterr().err
    device = SimpleNamespace(platform="tpu", device_kind="TPU9", memory_stats=lambda: None)
    assert peak_flops(device.device_kind) == 4e15
    assert memory.device_bytes([device]) == 256 * 2**30
    mesh = SimpleNamespace(local_devices=[device], size=4)
    with pytest.raises(UserError, match=r"\(4 × TPU9\), but only 274,877,906,944 .* are available"):
        memory.check(mesh, {"parameters": 2**39})  # type: ignore[arg-type]


@pytest.mark.slow
def test_from_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fiddle as fdl
    import my_parts  # type: ignore[import-not-found]

    monkeypatch.chdir(folder)
    config = apply_overrides(
        my_parts.my_recipe(), [*small(own_data=True, train_steps=1), "model_dir=python"]
    )
    with pytest.raises(Exception, match=r"optimizer: this object does not record how it was made"):
        fdl.build(config).run()
    assert not (folder / "python").exists()
    assert config_lib.run(config).step == 1
    assert config_lib.diff(config, config_lib.load_config("python")) == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer=@optax.lion", r"optimizer.learning_rate \(float"),
        ("optimizer=@my_parts.triangle", "was not called, because it has no return annotation"),
        ("optimizer=@mistaken.three", "expected AdafactorConfig, AdamWConfig or GradientTransfor"),
        ("optimizer.learning_rate=0.1", "expected ScheduleConfig or function, got float 0.1"),
        ("optimizer.learning_rate=@mistaken.branching", "the function branches on the step"),
        ("optimizer.learning_rate=@mistaken.shaped", r"returned a float32 array of shape \(2,\)"),
        ("model.loss_fn=@mistaken.mean_loss", r"mean_loss returned a loss that is a float32 array"),
        ("model.loss_fn=@mistaken.only_loss", r"expected a tuple \(loss, metrics\)"),
        ("model.loss_fn=focal", "expected function or None, got the word focal"),
        (
            "evaluator=@mtf.evaluation.InferEvalConfig(metrics=['my_parts.first_wrd'])",
            "There is no metric my_parts.first_wrd. Did you mean my_parts.first_word",
        ),
        ("optimizer.learning_rate=@my_parts.triangel", "Did you mean my_parts.triangle"),
    ],
)
def test_mistakes(setting: str, message: str, folder: Path) -> None:
    changes = [*small(model_dir="bad"), setting]
    text = run(["recipes.pretrain_text", "--set", *changes], folder, status=2)
    assert re.search(message, text), text
    assert "Traceback" not in text
    assert not (folder / "bad").exists()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_state", "list, whose iterator has no get_state and no set_state"),
        ("nothing", "data.train: the function returned a NoneType; expected an iterable"),
    ],
)
def test_mistaken_data(function: str, message: str, folder: Path) -> None:
    changes = [*small(own_data=True, model_dir="bad"), f"data.train=@mistaken.{function}"]
    assert message in run(["my_parts.py:my_recipe", "--set", *changes], folder, status=2)
    assert not (folder / "bad").exists()


def test_a_metric(folder: Path) -> None:
    from mtf.evaluation import metrics

    targets, predictions = ["a b", "c", "d e"], ["a c", "d", ""]
    assert metrics.compute("my_parts.first_word", targets, predictions) == {
        "first_word": pytest.approx(100 / 3)
    }
    with pytest.raises(UserError, match=r"metric mistaken\.two returned a dict; expected a number"):
        metrics.compute("mistaken.two", targets, predictions)
    # b; c; d and e are lacking in three predictions, and c and d are added.
    assert metrics.compute("my_parts.words", targets, predictions) == {
        "lacking": pytest.approx(4 / 3),
        "added": pytest.approx(2 / 3),
    }
    assert metrics.find("my_parts.words").best == "min"


@pytest.mark.parametrize("loader", ["memory", "cache", "seqio"])
def test_an_objective_and_a_source_with_each_loader(loader: Any, folder: Path) -> None:
    from mtf.data import ByteVocabulary, TaskMixtureConfig, loaders

    if loader == "seqio":
        pytest.importorskip("seqio")
    lengths = {"inputs": 16, "targets": 16}
    data = TaskMixtureConfig(
        **{"mixture_or_task_name": "pages", "module": "my_parts", "loader": loader},
        **{"cache_dir": "cache_of_pages"} if loader == "cache" else {},
        **{"vocabulary": ByteVocabulary(), "task_feature_lengths": lengths, "pack": False},
    )
    with contextlib.chdir(folder):
        held_out = loaders.sample_examples(data, 15)
        batch = next(loaders.make_train_iterator(data, batch_size=8))
    # Documents are joined, and segments of 30 bytes are cut in the middle.
    texts = [f"validation {i}: " + "words and words " * 5 for i in range(5)]
    joined = "".join(texts).encode()
    for number, example in enumerate(held_out[:15]):
        segment = joined[30 * number :][:30]
        halves = segment[: len(segment) // 2], segment[len(segment) // 2 :]
        assert [bytes((ids[:-1] - 3).tolist()) for ids in example] == [*halves]
    assert batch["decoder_target_tokens"].shape == (8, 16)


def test_t5x_takes_any_objective(folder: Path) -> None:
    from mtf.t5x.unsupported import find_refusals

    command = next(each for each in _COMMANDS if "data.objective=" in str(each))
    config = apply_overrides(config_lib.resolve(command[0]), command[2:])
    assert "Continuation" in config_lib.as_flat_text(config)
    assert [*find_refusals(config)] == [*find_refusals(config_lib.resolve(command[0]))]


def test_an_objective_in_a_cache_is_found_only_if_its_module_is_imported(folder: Path) -> None:
    from mtf.data.tasks import objectives

    info = json.loads((folder / "cache_of_pages" / "pages" / "info.json").read_text())
    assert info["objective"]["type"] == "my_parts.Continuation"
    with pytest.raises(
        UserError, match=r"unknown objective 'os\.system'; expected one of BertStyle"
    ):
        objectives.from_json({"type": "os.system"}, "task a: the cache names")


_PROMPT = """
dataset: my_pages
templates:
  1: !Template
    name: Title
    jinja: "{{text}} ||| {{title}}"
    metadata: !TemplateMetadata
      metrics:
      - Words
"""


def test_a_metric_of_prompts_and_of_seqio(folder: Path) -> None:
    from mtf.data import ByteVocabulary
    from mtf.data.mixtures import find_mixture

    (folder / "prompts" / "my_pages").mkdir(parents=True)
    (folder / "prompts" / "my_pages" / "templates.yaml").write_text(_PROMPT)
    name, templates = "my_pages_Title", str(folder / "prompts")
    ((task, _),) = find_mixture(name, ByteVocabulary(), "my_parts", templates).tasks
    assert task.metrics == ("my_parts.words",)

    seqio = pytest.importorskip("seqio")
    from mtf.evaluation import seqio_registry

    with contextlib.chdir(folder):
        seqio_registry.register("titles", vocabulary=ByteVocabulary())
        (function,) = seqio.TaskRegistry.get("titles").metric_fns
        assert function(["a b", "c"], ["a", "c d"]) == {"lacking": 0.5, "added": 0.5}


@pytest.mark.slow
def test_runs_with_an_objective_a_source_and_a_metric(folder: Path) -> None:
    texts, pages, titles = [
        command
        for command in _COMMANDS
        if any(part in str(command) for part in ("data.objective", "=pages", "=titles"))
    ]
    changes = [each for each in small() if not each.startswith("data.objective.")]
    evaluator = "evaluator=@mtf.evaluation.InferEvalConfig(period=6,metrics=['my_parts.words'])"
    run([*texts, "--set", *changes, "model_dir=of_texts", evaluator], folder)
    assert {"lacking", "added"} < {*read_metrics(folder / "of_texts", "inference_eval/held_out")[0]}
    run(["--from", "of_texts", "--set", "train_steps=8"], folder)
    # The source's records, in a cache and in memory.
    for name, command in {"pages": pages, "titles": titles}.items():
        run([*command, "--set", *small(own_data=True, model_dir=f"of_{name}")], folder)
        assert len(read_metrics(folder / f"of_{name}")) == 6
    told = run(
        [
            "recipes.evaluate(checkpoint=of_titles, mixture_or_task_name=titles)",
            *("--set", "data.module=my_parts", "output_dir=evaluated"),
            "decoding=@mtf.inference.DecodingConfig(max_length=8)",
        ],
        folder,
    )
    assert "lacking" in told
    found = json.loads((folder / "evaluated" / "results.json").read_text())["tasks"]["titles"]
    assert found["num_examples"] == 5
    assert {*found["metrics"]} == {"lacking", "added"}
