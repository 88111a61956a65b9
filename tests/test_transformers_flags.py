"""Flags of transformers' scripts: what is proposed instead is accepted, and has the same effect."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mtf import convert
from mtf.run import main
from tests.inference import models
from tests.recipes.test_finetune import PAIRS, hugging_face

# Flag, value, and the setting of `FIRST` that it stands for, or "" if there is none.
FLAGS = [
    ("--learning_rate", "3e-4", "optimizer.learning_rate.base_learning_rate = 0.0003"),
    ("--lr", "3e-4", "optimizer.learning_rate.base_learning_rate = 0.0003"),
    ("--num_train_epochs", "3", ""),
    ("--max_steps", "70", "train_steps = 1000070"),
    ("--per_device_train_batch_size", "8", "batch_size = 8"),
    ("--per-device-train-batch-size", "8", "batch_size = 8"),
    ("--per_device_eval_batch_size", "8", ""),
    ("--gradient_accumulation_steps", "4", "trainer.num_microbatches = 4"),
    ("--auto_find_batch_size", None, "auto_find_batch_size = True"),
    ("--group_by_length", None, "trainer.trim_padding = True"),
    ("--warmup_steps", "50", "optimizer.learning_rate.warmup_steps = 50"),
    ("--warmup_ratio", "0.1", "optimizer.learning_rate.warmup_steps = 2000"),
    ("--lr_scheduler_type", "linear", "optimizer.learning_rate.factors = 'linear_decay'"),
    ("--lr_scheduler_type", "cosine", "optimizer.learning_rate.steps_per_cycle = 20000"),
    ("--lr_scheduler_type", "constant_with_warmup", "optimizer.learning_rate.factors = 'constant'"),
    ("--optim", "adamw_torch", "optimizer = @mtf.training.settings.AdamWConfig"),
    ("--optim", "adafactor", "optimizer = @mtf.training.settings.AdafactorConfig"),
    ("--adafactor", "True", "optimizer = @mtf.training.settings.AdafactorConfig"),
    ("--adam_beta1", "0.8", "optimizer.beta1 = 0.8"),
    ("--adam_beta2", "0.99", "optimizer.beta2 = 0.99"),
    ("--adam_epsilon", "1e-6", "optimizer.epsilon = 1e-06"),
    ("--weight_decay", "0.01", "optimizer.weight_decay_rate_lr_exponent = 1.0"),
    ("--max_grad_norm", "1.0", "optimizer.global_norm_clip_threshold = 1.0"),
    ("--label_smoothing_factor", "0.1", "model.label_smoothing = 0.1"),
    ("--bf16", None, "model.network.dtype = 'bfloat16'"),
    ("--bf16", "False", ""),
    ("--fp16", "True", "model.network.dtype = 'bfloat16'"),
    ("--gradient_checkpointing", None, "model.network.remat_policy = 'full'"),
    ("--fsdp", "full_shard", "partitioner.fsdp = 8"),
    ("--deepspeed", "zero3.json", "partitioner.fsdp = 8"),
    ("--seed", "7", "random_seed = 7"),
    ("--data_seed", "7", "data.seed = 7"),
    ("--do_train", None, ""),
    ("--do_eval", None, ""),
    ("--do_predict", None, ""),
    ("--eval_on_start", None, "trainer.run_eval_before_training = True"),
    ("--eval_steps", "100", "trainer.eval_period = 100"),
    ("--eval_strategy", "steps", ""),
    ("--eval_strategy", "epoch", ""),
    ("--save_strategy", "epoch", ""),
    ("--evaluation_strategy", "no", "trainer.eval_period = None"),
    ("--predict_with_generate", None, "evaluator.period = 1000"),
    ("--generation_num_beams", "4", "evaluator.decoding.num_beams = 4"),
    ("--max_eval_samples", "50", "evaluator.num_examples = 50"),
    (
        "--load_best_model_at_end",
        None,
        "checkpoint.save.metric_name_to_monitor = 'training_eval/held_out/loss_per_target_token'",
    ),
    ("--metric_for_best_model", "eval_loss", "checkpoint.save.metric_mode = 'min'"),
    ("--metric_for_best_model", "eval_rougeLsum", ""),
    ("--dataloader_num_workers", "4", ""),
    ("--logging_steps", "10", "trainer.stats_period = 10"),
    ("--logging_dir", "logs", "model_dir = 'logs'"),
    ("--output_dir", "out", "model_dir = 'out'"),
    ("--overwrite_output_dir", None, ""),
    ("--run_name", "mine", "model_dir = 'runs/mine'"),
    ("--resume_from_checkpoint", "RUN", ""),
    ("--resume_from_checkpoint", None, ""),
    ("--save_steps", "100", "checkpoint.save.period = 100"),
    ("--save_strategy", "no", "checkpoint.save.period = None"),
    ("--save_total_limit", "2", "checkpoint.save.keep = 2"),
    ("--report_to", "wandb", "trackers = @mtf.training.trackers.libraries.Wandb"),
    ("--report_to", "mlflow", "trackers = @mtf.training.trackers.libraries.MLflow"),
    ("--report_to", "tensorboard", ""),
    ("--report_to", "none", "trackers = ()"),
    ("--push_to_hub", None, ""),
    ("--model_name_or_path", "hf", "checkpoint.restore.path = 'hf'"),
    ("--train_file", "pairs.csv", "data.files = 'pairs.csv'"),
    ("--max_source_length", "48", "data.task_feature_lengths.inputs = 48"),
    ("--max_target_length", "10", "data.task_feature_lengths.targets = 10"),
    ("--val_max_target_length", "10", "data.task_feature_lengths.targets = 10"),
]
FIRST = "recipes.t5_1_1_finetune(files='pairs.csv')"
RECIPES = [
    FIRST,
    "recipes.finetune(checkpoint='hf', train='pairs.csv', validation='pairs.csv')",
    pytest.param("recipes.t0pp_xxl", marks=pytest.mark.slow),
    "recipes.evaluate(checkpoint='hf')",
    "recipes.infer(checkpoint='hf', files='pairs.csv')",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flags")
    hugging_face(folder, num_encoder_layers=1, num_decoder_layers=1)
    (folder / "pairs.csv").write_text(
        "inputs,targets\n" + "".join(f"{inputs},{targets}\n" for inputs, targets in PAIRS)
    )
    models.write_run(folder / "RUN", step=7)
    return folder


def write_instead(message: str, recipe: str) -> list[list[str]]:
    """The command lines that messages propose, together as far as they change the recipe."""
    if whole := re.search(r"^ *Write: python -m (.*)$", message, re.MULTILINE):
        return [[*shlex.split(whole[1]), "--print", "all"]]
    settings: list[str] = []
    commands: list[list[str]] = []
    for text in re.findall(r"^.*There is no option.*$", message, re.MULTILINE):
        if text.endswith(" Leave it out."):
            continue
        _, found, written = text.partition(" Write ")
        assert found, text
        words = shlex.split(written)
        if words[0] == "--set":
            settings += words
        elif words[0] == "python":
            commands.append(words[2:] + ["--print", "all"] * ("--from" in words))
        else:
            (recipe,) = words
    return [["mtf.run", recipe, *settings, "--print", "all"], *commands]


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_proposed_is_accepted(
    recipe: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for flag, value, setting in FLAGS:
        assert main([recipe, flag, *([] if value is None else [value])]) == 2, flag
        message = capsys.readouterr().err
        assert message.startswith(f"error: There is no option {flag}. "), message
        for module, *words in write_instead(message, recipe):
            if module == "mtf.convert":
                output = folder / f"{len([*folder.iterdir()])}"
                words[1] = str(output)
                assert convert.main(words) == 0
                continue
            assert main(words) == 0, message
            shown = capsys.readouterr().out
            if recipe == FIRST and "--from" not in words:
                assert f"\n{setting}" in f"\n{shown}", (flag, message)
        if recipe == FIRST and not setting:
            assert "--set" not in message


@pytest.mark.parametrize("recipe", RECIPES[:2])
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--learning_rate fast", "expected float.*, got .*fast"),
        ("--learning_rate -1", "must be finite and not negative, not -1.0"),
        ("--max_steps many", "expected int.*, got .*many"),
        ("--per_device_train_batch_size inf", "expected int"),
        ("--gradient_accumulation_steps 3", "is not divisible by trainer.num_microbatches 3"),
        ("--lr_scheduler_type polynomial", "(kind|schedule)=.*expected .*linear.*polynomial"),
        ("--max_grad_norm 0", "must be positive or None, not 0.0"),
        ("--report_to comet", "TensorBoard events are always written. Leave it out."),
    ],
)
def test_values_that_are_refused_are_not_proposed(
    recipe: str,
    flags: str,
    says: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert main([recipe, *flags.split()]) == 2
    message = capsys.readouterr().err
    assert re.search(says, message), message
    assert "Write" not in message


def test_a_launch_line_of_run_summarization(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    line = """--model_name_or_path hf --do_train --train_file pairs.csv --validation_file pairs.csv
        --text_column inputs --summary_column targets --source_prefix "summarize: "
        --num_train_epochs 4 --per_device_train_batch_size 1 --gradient_accumulation_steps 2
        --learning_rate 5e-5 --lr_scheduler_type linear --warmup_ratio 0.2 --optim adamw_torch
        --metric_for_best_model accuracy --max_source_length 64 --output_dir out --seed 3"""
    recipe = "recipes.finetune"
    assert main([recipe, *shlex.split(line)]) == 2
    message = capsys.readouterr().err
    ((_, call, *words),) = write_instead(message, "")
    assert message.endswith("random_seed=3\n")
    assert call.startswith("recipes.finetune(checkpoint='hf', train='pairs.csv', ")
    assert "Adafactor" not in message  # The learning rate is for AdamW.
    assert main([call, *words]) == 0
    shown = set(capsys.readouterr().out.splitlines())
    assert {
        "train_steps = 6",  # Four epochs of three examples, two at a time.
        "batch_size = 2",
        "trainer.num_microbatches = 2",
        "optimizer = @mtf.training.settings.AdamWConfig",
        "optimizer.learning_rate.base_learning_rate = 5e-05",
        "optimizer.learning_rate.factors = 'linear_decay'",
        "optimizer.learning_rate.warmup_steps = 1",
        "data.task.inputs = 'summarize: {inputs}'",
        "data.task.metrics = ('accuracy',)",
        "data.task_feature_lengths.inputs = 64",
        "model_dir = 'out'",
        "random_seed = 3",
    } <= shown


LAUNCH = """--model_name_or_path hf --train_file {} --num_train_epochs 3 --lr 1e-3 --bf16
    --report_to wandb --output_dir out --eval_on_start --seed 3 --load_best_model_at_end"""
SETTINGS = """--set model.network.dtype=bfloat16 trackers=@mtf.training.trackers.Wandb model_dir=out
    trainer.run_eval_before_training=True random_seed=3"""


def test_a_launch_line_without_a_recipe(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["--model_name_or_path", "hf", "--train_file", "pairs.csv", "--seed", "3"]) == 2
    message = capsys.readouterr().err
    (words,) = write_instead(message, "")
    call = "recipes.finetune(checkpoint='hf', train='pairs.csv')"
    assert words[:-2] == ["mtf.run", call, "--set", "random_seed=3"]
    assert main(words[1:]) == 0
    capsys.readouterr()
    assert main(["--model_name_or_path", "hf"]) == 2
    assert "python -m mtf.run \"recipes.finetune(checkpoint='hf')\"" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["pairs.csv", "nowhere.csv"])
def test_the_whole_command_does_not_depend_on_the_data(
    file: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["recipes.finetune", *LAUNCH.format(file).split()]) == 2
    message = capsys.readouterr().err
    (words,) = write_instead(message, "")
    call = (
        f"recipes.finetune(checkpoint='hf', train='{file}', epochs=3, learning_rate=1e-3, "
        "optimizer='adamw', schedule='linear')"
    )
    assert words[:-2] == ["mtf.run", call, *SETTINGS.split()]
    assert "--lr: Seq2SeqTrainer has AdamW and a linear schedule, mtf Adafactor" in message
    assert "The best checkpoint is always kept. Leave it out." in message
    assert ("nowhere.csv does not exist" in message) == (file == "nowhere.csv")
    assert "--help" not in message
    assert "needs a value" not in message


@pytest.mark.parametrize(
    ("flags", "added", "shown"),
    [
        (
            "--num_train_epochs 4 --eval_strategy epoch --save_strategy epoch",
            "batch_size=2",
            {"trainer.eval_period = 2", "checkpoint.save.period = 2", "train_steps = 6"},
        ),
        (
            "--metric_for_best_model eval_rougeL --seed 3",
            "steps=2",
            {"data.task.metrics = ('rouge',)", "random_seed = 3"},
        ),
    ],
)
def test_flags_after_a_call(
    flags: str,
    added: str,
    shown: set[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    call = RECIPES[1].replace(")", f", {added})")
    assert main([call, *flags.split()]) == 2
    (words,) = write_instead(capsys.readouterr().err, "")
    assert main(words[1:]) == 0
    assert shown <= set(capsys.readouterr().out.splitlines())
