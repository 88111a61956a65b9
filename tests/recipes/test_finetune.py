"""`recipes.finetune`: what it reads off checkpoints and data, and a run from start to export."""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import fiddle as fdl
import numpy as np
import pytest

import conversion
import recipes
from mtf import builders, convert, run
from mtf import config as config_lib
from mtf.base import environment
from mtf.base.errors import UserError
from mtf.data import loaders
from mtf.data.mixtures import open_mixture
from mtf.data.packing import to_batch
from mtf.data.sources.datasets import open_split
from mtf.jobs.train import batch_size
from mtf.partitioning import FULLY_SHARDED_AXIS_RULES, memory
from mtf.partitioning.mesh import PjitPartitioner
from mtf.training.schedules import learning_rate
from mtf.training.trainer import Trainer
from tests import small
from tests.conversion import writers
from tests.golden import recorded
from tests.inference import models
from tests.test_structure import HEAVY

PAIRS = [("is the sky blue", "yes"), ("is the sea red", "no"), ("is it so", "maybe not")]


def hugging_face(folder: Path, vocabulary: str = "byt5", **sizes: Any) -> Path:
    """A random network in Hugging Face's form."""
    source = writers.write_t5x(folder / "t5x", writers.random_parameters(**sizes))
    options = ["--to", "hf", "--vocabulary", vocabulary]
    assert convert.main([str(source), str(folder / "hf"), *options]) == 0
    return folder / "hf"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `hf`, a random ByT5, and the same pairs in every form."""
    folder = tmp_path_factory.mktemp("finetune")
    hugging_face(folder, num_encoder_layers=1, num_decoder_layers=1)
    lines = [f"{inputs}\t{targets}\n" for inputs, targets in PAIRS]
    (folder / "pairs.tsv").write_text("".join(lines))
    (folder / "header.tsv").write_text("inputs\ttargets\n" + "".join(lines))
    (folder / "named.tsv").write_text("question\tanswer\n" + "".join(lines))
    (folder / "notes.csv").write_text(
        "id,note text,answer\n" + "".join(f"{i},{a},{b}\n" for i, (a, b) in enumerate(PAIRS))
    )
    (folder / "three.tsv").write_text("a\tb\tc\n")
    rows = [{"q-text": question, "answer": answer} for question, answer in PAIRS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


# ------------------------------------------------------------------------------------ checkpoints


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({}, {}),
        ({"num_encoder_layers": 3, "num_decoder_layers": 1}, {"num_encoder_layers": 3}),  # ByT5
        ({"bias_per_layer": True}, {"relpos_bias_per_layer": True}),  # umT5
        (
            {"gated": False, "tied": True},  # T5 1.0
            {"mlp_activations": ("relu",), "logits_via_embedding": True},
        ),
    ],
)
def test_the_network_is_that_of_the_checkpoint(
    tmp_path: Path, folder: Path, written: dict[str, Any], expected: dict[str, Any]
) -> None:
    checkpoint = hugging_face(tmp_path, **written)
    job = fdl.build(recipes.finetune(str(checkpoint), str(folder / "pairs.tsv"), steps=20))
    network = job.model.network
    sizes = (network.vocab_size, network.emb_dim, network.num_heads, network.head_dim)
    assert sizes == (384, 32, 3, 8)
    assert network.mlp_dim == 48
    given = {"mlp_activations": ("gelu", "linear"), "logits_via_embedding": False}
    for name, value in {**given, "relpos_bias_per_layer": False, **expected}.items():
        assert getattr(network, name) == value
    assert (job.train_steps, job.checkpoint.restore.step) == (20, 0)
    assert job.describe().problems == []


def test_an_output_projection_that_becomes_separate_is_announced(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint, pairs = hugging_face(tmp_path, tied=True), str(folder / "pairs.tsv")
    assert recipes.finetune(str(checkpoint), pairs).model.network.logits_via_embedding
    assert not caplog.messages
    settings = json.loads((checkpoint / "config.json").read_text())
    settings["scale_decoder_outputs"] = False
    (checkpoint / "config.json").write_text(json.dumps(settings))
    (checkpoint / "checksums.json").unlink()
    network = recipes.finetune(str(checkpoint), pairs).model.network
    assert not fdl.build(network).logits_via_embedding
    assert "has no output projection" in caplog.text


@pytest.mark.parametrize(("fixture", "extra_ids"), [("t5_model", 100), ("mt5_model", 0)])
def test_the_vocabulary_is_that_of_the_checkpoint(
    tmp_path: Path, folder: Path, fixture: str, extra_ids: int, request: pytest.FixtureRequest
) -> None:
    model: Path = request.getfixturevalue(fixture)
    checkpoint = hugging_face(tmp_path, str(model), vocab_size=896, emb_dim=4, num_heads=1)
    job = fdl.build(recipes.finetune(str(checkpoint), str(folder / "pairs.tsv")))
    assert Path(job.data.vocabulary.path).read_bytes() == model.read_bytes()
    assert job.data.vocabulary.extra_ids == extra_ids
    assert job.describe().problems == []


def test_steps_are_counted_from_that_of_the_checkpoint(tmp_path: Path, folder: Path) -> None:
    run = models.write_run(tmp_path / "run", step=7)
    t5x = models.write_checkpoint(tmp_path / "t5x")
    golden = recorded.unpack("rsqrt_orbax", tmp_path)
    for path, options, step in (
        (run, {}, 7),
        (t5x, {"vocabulary": "byt5"}, 7),
        (golden, {"vocabulary": "byt5"}, 20),
    ):
        config = recipes.finetune(str(path), str(folder / "pairs.tsv"), steps=5, **options)
        job = fdl.build(config)
        assert job.train_steps == step + 5
        assert job.optimizer.step_offset == job.checkpoint.restore.step == step
        assert job.describe().problems == []


def test_a_new_optimizer_for_every_layout(tmp_path: Path, folder: Path) -> None:
    golden = recorded.unpack("rsqrt_zarr", tmp_path)
    assert any("param_states" in name for name in conversion.open_checkpoint(golden).tensors)
    config = recipes.finetune(str(golden), str(folder / "pairs.tsv"), vocabulary="byt5")
    start = fdl.build(config).describe().rows["start"]
    assert "53 tensors fit, " in start  # 52 parameters and the step.
    assert start.endswith(" of the optimizer state are initialized") and "param" not in start


# ------------------------------------------------------------------------------------------ data


def text(ids: np.ndarray) -> str:
    """The text of ByT5's ids, without EOS."""
    return bytes(int(i) - 3 for i in ids[:-1]).decode()


@pytest.mark.parametrize(
    ("arguments", "inputs"),
    [
        ({"train": "pairs.tsv"}, "is the sky blue"),
        ({"train": "header.tsv"}, "is the sky blue"),
        ({"train": "named.tsv", "template": "question ||| answer"}, "is the sky blue"),
        ({"train": "rows.jsonl", "template": "{q-text}? ||| {answer}"}, "is the sky blue?"),
        ({"train": "notes.csv", "template": "{note text}? ||| {answer}"}, "is the sky blue?"),
        ({"train": "notes.csv", "template": "{answer[0]} ||| {answer}"}, "y"),
        (
            {"train": "rows.jsonl", "template": "{{q_text | upper}} ||| {{answer}}"},
            "IS THE SKY BLUE",
        ),
    ],
)
def test_data_in_every_form(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], inputs: str
) -> None:
    monkeypatch.chdir(folder)
    data = fdl.build(recipes.finetune("hf", **arguments)).data
    examples = loaders.sample_examples(data, 10)
    assert len(examples) == len(PAIRS)
    (first,) = [e for e in examples if text(e.targets) == "yes"]
    assert text(first.inputs) == inputs
    assert first.inputs[-1] == first.targets[-1] == 1  # EOS


def test_csv_of_which_a_fraction_is_held_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    lines = "".join(f'"number ""{n}"",\nor so",{n}\n' for n in range(40))
    (folder / "many.csv").write_text(f"document,summary\n{lines}")
    for validation in ("10%", 0.1):
        recipe = f"recipes.finetune(checkpoint='hf', train='many.csv', validation={validation!r}, "
        config = config_lib.resolve(
            f"{recipe} template='document ||| summary', epochs=2, batch_size=5)"
        )
        assert config.train_steps == 2 * 36 / 5 + 0.6  # 15 steps
        data = fdl.build(config).data
        held_out = [text(each.targets) for each in loaders.sample_examples(data, 10)]
        assert len(held_out) == 4
        shard = {"batch_size": 36, "shard_id": 0, "num_shards": 1}
        batch = next(loaders.make_train_iterator(data, **shard))
        trained = {text(ids[ids > 0]) for ids in batch["decoder_target_tokens"]}
        assert sorted({*held_out, *trained}, key=int) == [str(n) for n in range(40)]
        assert not {*held_out} & trained


def test_a_part_of_the_training_files_cannot_be_held_out_beside_validation_files() -> None:
    data = builders.data.files({"train": "a", "validation": "b"}, inputs="x", targets="y")
    data.task.held_out = 0.1
    with pytest.raises(UserError, match="splits are train, validation; expected train, and not"):
        open_mixture(fdl.build(data))


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "rsqrt"])
@pytest.mark.parametrize("warmup", [0, 0.2])
def test_schedules(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, warmup: float) -> None:
    """The formulas are those of transformers' documentation; `k` counts the updates so far."""
    monkeypatch.chdir(folder)
    config = recipes.finetune(
        "hf", "pairs.tsv", steps=50, optimizer="adamw", schedule=kind, warmup=warmup
    )
    schedule = fdl.build(config.optimizer).learning_rate
    num, start = round(50 * warmup), max(round(50 * warmup), kind in ("linear", "rsqrt"))
    assert num == 10 * bool(warmup)
    for k in range(50):
        expected = {
            "constant": 1.0,
            "linear": (50 - k) / (50 - start),
            "cosine": 0.5 * (1 + np.cos(np.pi * (k - start) / (50 - start))),
            "rsqrt": (start / max(k, 1)) ** 0.5,
        }[kind]
        expected = k / start if k < start else expected
        assert learning_rate(schedule, k) == pytest.approx(1e-4 * expected, rel=1e-5, abs=2e-8)


def test_lengths_fit_the_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    # 15 bytes and EOS, and a quarter: 20. 9 bytes and EOS, and a quarter: 12.5.
    config = recipes.finetune("hf", "pairs.tsv")
    assert config.data.task_feature_lengths == {"inputs": 32, "targets": 16}
    config = recipes.finetune("hf", "pairs.tsv", lengths=(48, 7))
    assert config.data.task_feature_lengths == {"inputs": 48, "targets": 7}
    (folder / "long.jsonl").write_text(json.dumps({"inputs": "x" * 5000, "targets": "y" * 999}))
    config = recipes.finetune("hf", "long.jsonl")
    assert config.data.task_feature_lengths == {"inputs": 1024, "targets": 256}


def test_a_dataset_and_a_mixture(tmp_path: Path, folder: Path) -> None:
    config = recipes.finetune(str(folder / "hf"), mixture="t0_train", metrics=("rouge", "bleu"))
    assert config.data.mixture_or_task_name == "t0_train"
    assert config.evaluator.metrics == ("rouge", "bleu")
    monitored = config.checkpoint.save.metric_name_to_monitor
    assert monitored == "training_eval/t0_train/loss_per_target_token"


def test_a_metric_of_the_user_chooses_the_best_checkpoint(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_scores.py").write_text("def share(targets, predictions):\n    return 1.0\n")
    (tmp_path / "train.tsv").write_text("a\tb\n")
    monkeypatch.syspath_prepend(tmp_path)
    file = str(tmp_path / "train.tsv")
    save = recipes.finetune(
        str(folder / "hf"), file, file, metrics="my_scores.share"
    ).checkpoint.save
    assert save.metric_name_to_monitor == "inference_eval/files/share"
    assert save.metric_mode == "max"


def streamed(folder: Path, **arguments: Any) -> fdl.Config:
    for split in ("train", "validation"):
        (folder / "dataset").mkdir(exist_ok=True)
        shutil.copy(folder / "rows.jsonl", folder / "dataset" / f"{split}.jsonl")
    given = {"dataset": str(folder / "dataset"), "template": "{q-text} ||| answer", **arguments}
    return recipes.finetune(str(folder / "hf"), streaming=True, **given)


def test_a_dataset_is_streamed(folder: Path) -> None:
    pytest.importorskip("datasets")
    config = streamed(folder, steps=4, batch_size=3)
    assert config.data.task_feature_lengths == {"inputs": 512, "targets": 128}
    save = config.checkpoint.save
    assert save.metric_name_to_monitor == "training_eval/validation/loss_per_target_token"
    job = fdl.build(config)
    batch = next(loaders.make_train_iterator(job.data, batch_size=3))
    decoded = [job.data.vocabulary.decode(row) for row in batch["encoder_input_tokens"]]
    assert sorted(decoded) == sorted(question for question, _ in PAIRS)
    with_subset = streamed(folder, dataset=("mine", "rte"), metrics="accuracy")
    assert with_subset.data.subsets == {"rte": 1.0}
    assert with_subset.checkpoint.save.metric_name_to_monitor == "inference_eval/held_out/accuracy"
    assert with_subset.evaluator.metrics == ("accuracy",)


@pytest.mark.slow
def test_a_run_on_a_stream_is_evaluated(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    config = streamed(folder, steps=2, batch_size=3, lengths=(32, 16), metrics="accuracy")
    config.model_dir = str(tmp_path / "run")
    config_lib.run(config)
    for name in ("training_eval/validation", "inference_eval/held_out"):
        assert (tmp_path / "run" / name / "metrics.jsonl").is_file()


def test_a_dataset_of_the_mirror(
    folder: Path, datasets_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTF_DATA_DIR", str(datasets_dir))
    template = "review: {{text}} ||| {{['negative', 'positive'][label]}}"
    config = recipes.finetune(
        str(folder / "hf"), dataset="rotten_tomatoes", template=template, metrics="f1"
    )
    config.data.task.answer_choices = ("negative", "positive")
    assert config.checkpoint.save.metric_name_to_monitor == "inference_eval/rotten_tomatoes/f1"
    assert fdl.build(config).describe().problems == []
    config = recipes.finetune(
        str(folder / "hf"),
        "validation",
        "train",
        dataset=("super_glue", "rte"),
        template="premise? {text} ||| label",
    )
    assert (config.data.task.dataset, config.data.task.subset) == ("super_glue", "rte")
    assert (config.data.split, config.data.eval_split) == ("validation", "train")
    config = recipes.finetune(
        str(folder / "hf"), dataset="rotten_tomatoes", template=template, validation=0.25
    )
    assert fdl.build(config).describe().problems == []
    whole = len(open_split("rotten_tomatoes", None, "train"))
    held_out = len(loaders.sample_examples(fdl.build(config.data), whole))
    assert (held_out, builders.data.num_records(config.data)) == (whole // 4, whole - whole // 4)


# --------------------------------------------------------------------------------------- hardware


def test_values_for_the_hardware(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for platform, dtype, scans in (("cpu", "float32", False), ("cuda,cpu", "bfloat16", True)):
        monkeypatch.setenv("JAX_PLATFORMS", platform)
        network = recipes.finetune("hf", "pairs.tsv").model.network
        assert (network.dtype, network.scan_layers) == (dtype, scans)
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(environment, "_GPU_FILES", ("/nowhere",))
    monkeypatch.setattr(environment, "_TPU_FILES", ("/nowhere*",))
    assert not environment.has_accelerator()


def test_large_models_are_split(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert recipes.finetune("hf", "pairs.tsv").model.network.remat_policy == "auto"
    monkeypatch.setattr(builders.start, "_LARGE", 10_000)
    large = fdl.build(recipes.finetune("hf", "pairs.tsv"))
    assert large.partitioner.logical_axis_rules == FULLY_SHARDED_AXIS_RULES
    # On eight devices, each has an eighth of what the rules split.
    assert "kernel" in large.describe_sharding(8)


def test_the_recipe_is_shown_without_jax(folder: Path) -> None:
    recipe = "recipes.finetune(checkpoint='hf', train='pairs.tsv', validation='pairs.tsv')"
    code = (
        "import sys, time; from mtf.cli.run import main; "
        f'assert main(["{recipe}", "--print", "flat"]) == 0; '
        "print(*{m.partition('.')[0] for m in sys.modules}); print(time.process_time())"
    )
    *_, modules, seconds = small.python("-c", code, cwd=folder).stdout.splitlines()
    assert not set(modules.split()) & (HEAVY - {"numpy"})
    assert float(seconds) < 3


def auto(folder: Path, run: Path) -> fdl.Config:
    config = recipes.finetune(
        str(folder / "hf"), str(folder / "pairs.tsv"), steps=1, batch_size="auto"
    )
    config.num_samples, config.model_dir = 0, str(run)
    return config


def test_the_batch_is_halved_until_it_fits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    config = auto(folder, tmp_path / "run")
    assert (config.batch_size, config.auto_find_batch_size) == (32, True)
    monkeypatch.setattr(batch_size, "_needed_bytes", lambda job, trainer, size, limit: size * 2**30)
    monkeypatch.setattr(memory, "device_bytes", lambda devices: 12 * 2**30)
    assert config_lib.settled(fdl.build(config), config).batch_size == config.batch_size == 8
    assert capsys.readouterr().out.startswith("batch_size 8: a step needs 8.00 GiB of 10.80 GiB")
    assert not config.auto_find_batch_size
    config.auto_find_batch_size, config.trainer.num_microbatches = True, 8
    monkeypatch.setattr(memory, "device_bytes", lambda devices: 2**30)
    with pytest.raises(UserError, match="a batch of 8 needs at least"):
        config_lib.settled(fdl.build(config), config)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    assert auto(folder, tmp_path / "run").batch_size == 1024


@pytest.mark.slow
def test_the_batch_size_is_that_of_the_memory_and_kept_on_resume(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @functools.cache
    def needed(size: int) -> int:
        config = auto(folder, tmp_path / "run")
        job = fdl.build(config)
        partitioner = PjitPartitioner.create(job.partitioner)
        trainer = Trainer(job.model, job.optimizer, partitioner, job.trainer)
        rows = to_batch([], job.data.task_feature_lengths, size, False)
        sizes = trainer.compile(trainer.state_shapes, rows).memory_analysis()
        used = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
        return int(used + sizes.output_size_in_bytes - sizes.alias_size_in_bytes)

    available = int(needed(8) / 0.9) + 1000
    monkeypatch.setattr(memory, "device_bytes", lambda devices: available)
    config = auto(folder, tmp_path / "run")
    config_lib.run(config)
    assert config_lib.load_config(tmp_path / "run").batch_size == 8 and needed(16) > needed(8)
    monkeypatch.undo()
    again = auto(folder, tmp_path / "run")
    again.train_steps = 2
    config_lib.run(again)
    assert config_lib.load_config(tmp_path / "run").batch_size == 8
    assert small.steps(tmp_path / "run")[-1] == 2


# --------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"train": "pair.tsv"}, "pair.tsv does not exist .*Did you mean pairs.tsv"),
        (
            {"train": "named.tsv", "template": "questions ||| answer"},
            "no column 'questions'.*mean question",
        ),
        ({"train": "pairs.tsv", "checkpoint": "fh"}, "There is no model at fh.*Did you mean hf"),
        ({"train": "pairs.tsv", "checkpoint": "pairs.tsv"}, "pairs.tsv is a file"),
        (
            {"train": "pairs.tsv", "validation": "pairs.tsv", "metrics": "acuracy"},
            "no metric 'acuracy'.*Did you mean accuracy",
        ),
        ({"train": "pairs.tsv", "metrics": "bleu"}, "metrics needs validation data"),
        ({"train": "pairs.tsv", "patience": 2}, "patience needs validation data"),
        ({}, "No data was given. Set train"),
        ({"mixture": "t0_train", "dataset": "x"}, "mixture is set, so dataset would be ignored"),
        (
            {"mixture": "t0_train", "template": "a ||| b"},
            "mixture is set, so template would be ignored",
        ),
        ({"train": "pairs.tsv", "warmup": 1000}, "fewer than 1000 steps, not 1000"),
        (
            {"train": "pairs.tsv", "validation": 1.5},
            "validation: the fraction 1.5 is not between 0 and 1",
        ),
        ({"train": "pairs.tsv", "steps": 5, "epochs": 2}, "steps and epochs are both set"),
        ({"mixture": "t0_train", "validation": "5%"}, "validation needs files or a dataset"),
        ({"dataset": "x", "train": "test", "validation": "5%"}, "divides the split train, not"),
        ({"mixture": "t0_train", "epochs": 2}, "epochs needs files or a dataset"),
        ({"train": "pairs.tsv", "batch_size": "auto", "epochs": 2}, "epochs needs a batch size"),
        ({"mixture": "t0_train", "streaming": True}, "streaming needs a dataset"),
        (
            {"dataset": "xsum", "streaming": True, "epochs": 2, "validation": "5%"},
            "epochs: set steps, .*; validation: set validation to a split",
        ),
        ({"train": "rows.jsonl", "template": "{answer}"}, "has 0 separators"),
        ({"train": "three.tsv"}, r"expected the 2 columns of a headerless file \(inputs, "),
    ],
)
def test_mistakes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], says: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=says):
        recipes.finetune(**{"checkpoint": "hf", **arguments})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("validation='pairs.tvs'", "pairs.tvs does not exist in .* Did you mean pairs.tsv"),
        (
            "validation='pairs.tsv', metrics='f1'",
            "f1 compares classes; set answer_choices to .*'yes'",
        ),
    ],
)
def test_mistakes_in_validation_data(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    says: str,
) -> None:
    """The dry run and the run refuse them alike, and nothing is written."""
    monkeypatch.chdir(folder)
    recipe = f"recipes.finetune(checkpoint='hf', train='pairs.tsv', batch_size=2, {arguments})"
    for given in (["--dry-run"], ["--set", "model_dir=refused"]):
        assert run.main([recipe, *given]) == 2
        assert re.search(says, capsys.readouterr().err)
    assert not (folder / "refused").exists()


# ------------------------------------------------------------------------------------------- runs


@pytest.mark.slow
def test_a_run_without_validation_data_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    recipe = "recipes.finetune(checkpoint='hf', train='pairs.tsv', steps=2, batch_size=2)"
    said = small.run([recipe, "--set", "model_dir=unvalidated"], folder)
    start = said.index("nothing is evaluated, because the data has no held-out part")
    assert start < said.index("\nstep 2/2")
    checkpoints = folder / "unvalidated" / "checkpoints"
    assert [each.name for each in checkpoints.glob("checkpoint_*")] == ["checkpoint_2"]


@pytest.mark.slow
def test_a_run_ends_with_the_best_checkpoint_and_its_export(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a rate of almost 0, nothing improves: the first evaluation is the best."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    shutil.copytree(folder / "hf", folder / "gone")
    recipe = (
        "recipes.finetune(checkpoint='gone', train='pairs.tsv', validation='pairs.tsv', "
        "metrics='accuracy', steps=40, batch_size=2, eval_period=2, patience=2, "
        "learning_rate=0.0)"
    )
    said = small.run([recipe, "--set", "model_dir=run"], folder)
    assert "nothing is evaluated" not in said
    assert "\nended early    inference_eval/files/accuracy has not improved since step 2 " in said
    assert len(re.findall(r" → .* [✓✗]", said)) == 3
    # Of equal checkpoints, the latest is the best.
    best = (folder / "run" / "checkpoints" / "checkpoint_6").resolve()
    assert f"\nexport         python -m mtf.convert {best} run/hf --to hf\n" in said

    # The parameters are those of the start: Adafactor's smallest rate is 1e-8.
    start = conversion.open_checkpoint(folder / "gone").parameters()
    end = conversion.open_checkpoint(best).parameters()
    for name, tensor in start.items():
        np.testing.assert_allclose(end[name].read(), tensor.read(), rtol=1e-4, atol=1e-6)

    # The stored config needs no checkpoint.
    shutil.rmtree(folder / "gone")
    job = fdl.build(config_lib.load_config(folder / "run"))
    assert job.model.network.emb_dim == 32
    assert convert.main([str(best), str(folder / "exported"), "--to", "hf"]) == 0
