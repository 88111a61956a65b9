"""Translates flags of transformers' `Seq2SeqTrainingArguments` and `run_summarization.py`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl

from mtf.config.paths import NOWHERE, follow, parse_path

# An entry is `FLAG: PROPOSAL | PROPOSAL … # NOTE`. FLAG may be several names, and NAME=WORD is for
# only this value of a flag. The first proposal that fits the recipe is shown:
#
# * `PATH=VALUE` is a setting for `--set`; others may follow `; `. A part without `=` is a path
#   that the config must have.
# * `(NAME=VALUE)` is an argument of the recipe. It can be only the first proposal.
# * `python -m …` is a command.
# * `-` means that the flag can be left out; a reason may follow.
#
# Names in braces are the keys of `_facts`, or `v` for the flag's value.
_TRAIN = """
num_train_epochs epochs: -
    # train_steps is the step of the start plus epochs * examples / batch_size.
max_steps: (steps={v}) | train_steps={last}
per_device_train_batch_size train_batch_size: (batch_size={batch}) | batch_size={batch}
    # batch_size counts the examples of an update, on all devices together.
per_device_eval_batch_size eval_batch_size: -
    # Evaluations have the batch size of the training.
auto_find_batch_size: auto_find_batch_size=True
gradient_accumulation_steps: trainer.num_microbatches={v}
    # batch_size counts the examples of an update. It is split into microbatches.
group_by_length: trainer.trim_padding=True | -
    # Padding after the longest row of a batch can be cut.
learning_rate lr: optimizer.learning_rate.base_learning_rate={v} | optimizer.learning_rate={v}
lr_scheduler_type: (schedule={kind}) | {schedule}
warmup_steps warmup_ratio: (warmup={v}) | {schedule}
optim=adafactor adafactor: (optimizer=adafactor) | {adafactor}
optim=adamw: (optimizer=adamw) | {adamw}
adam_beta1: optimizer.beta2; optimizer.beta1={v} | {adamw}; optimizer.beta1={v}
adam_beta2: optimizer.beta2={v} | {adamw}; optimizer.beta2={v}
adam_epsilon: optimizer.epsilon={v} | {adamw}; optimizer.epsilon={v}
weight_decay: optimizer.weight_decay_rate={v}; optimizer.weight_decay_rate_lr_exponent=1.0
    | optimizer.weight_decay_rate={v}
max_grad_norm: optimizer.global_norm_clip_threshold={v}
label_smoothing_factor: model.label_smoothing={v}
bf16: model.network.dtype=bfloat16
fp16: model.network.dtype=bfloat16 # T5 overflows in float16.
gradient_checkpointing: model.network.remat_policy=full
fsdp deepspeed: partitioner.fsdp=8
    # The parameters can be split over a number of devices, such as 8.
seed: random_seed={v}
data_seed: data.seed={v}
do_train: - # The recipe says what a run does.
do_eval: - # A run evaluates if its data has a held-out part.
do_predict: - # recipes.infer predicts.
eval_steps: (eval_period={v}) | trainer.eval_period={v}
eval_on_start: trainer.run_eval_before_training=True
eval_strategy=no evaluation_strategy=no: evaluator; trainer.eval_period=None;
    checkpoint.save.metric_name_to_monitor=None; checkpoint.save.metric_mode=None; evaluator=None
eval_strategy evaluation_strategy: -
    # trainer.eval_period is a number of steps; an epoch has examples / batch_size.
predict_with_generate: evaluator=@mtf.evaluation.InferEvalConfig(period={period})
generation_num_beams num_beams: evaluator.decoding={decoding}
    | evaluator=@mtf.evaluation.InferEvalConfig(period={period}, decoding={decoding})
max_eval_samples: evaluator.num_examples={v}
    | evaluator=@mtf.evaluation.InferEvalConfig(period={period}, num_examples={v})
metric_for_best_model=loss load_best_model_at_end: trainer.eval_period={period};
    checkpoint.save.metric_name_to_monitor={loss}; checkpoint.save.metric_mode=min
metric_for_best_model: (metrics={metric}) | -
    # checkpoint.save.metric_name_to_monitor ranks checkpoints.
early_stopping_patience: (patience={v}) | trainer.early_stopping_patience={v}
logging_steps: trainer.stats_period={v}
logging_dir output_dir: model_dir={v}
run_name: model_dir=runs/{v}
overwrite_output_dir: - # A run is resumed if its model_dir exists. Set another model_dir.
resume resume_from_checkpoint: python -m mtf.run --from {run}
save_steps: (eval_period={v}) | checkpoint.save.period={v}
save_strategy=no: checkpoint.save.period=None
save_strategy: -
    # checkpoint.save.period is a number of steps; an epoch has examples / batch_size.
save_total_limit: checkpoint.save.keep={v}
report_to=wandb: trackers=@mtf.training.trackers.Wandb
report_to=mlflow: trackers=@mtf.training.trackers.MLflow
report_to=none: trackers=()
report_to: - # TensorBoard events are always written.
push_to_hub hub_model_id: python -m mtf.convert {model_dir} exported --to hf
    # After the run, hf upload NAME exported uploads what this command exports.
model_name_or_path: (checkpoint={v}) | checkpoint.restore.path={v}
    | checkpoint.restore=@mtf.checkpoints.RestoreCheckpointConfig(path='{v}', mode=specific)
tokenizer_name: (vocabulary={v}) | data.vocabulary.path={v}
    | - data.vocabulary is the tokenizer.
dataset_name dataset_config_name: (dataset={dataset}) | {own_data}
train_file: (train={v}) | data.files={v} | {own_data}
validation_file: (validation={v}) | {own_data}
test_file: - # recipes.infer and recipes.evaluate read such files.
text_column summary_column source_prefix: (template={template}) | {own_data}
max_source_length: data.task_feature_lengths.inputs={v}
max_target_length generation_max_length val_max_target_length:
    data.task_feature_lengths.targets={v}
dataloader_num_workers dataloader_pin_memory dataloader_drop_last preprocessing_num_workers
    overwrite_cache remove_unused_columns pad_to_max_length ignore_pad_token_for_loss disable_tqdm
    fp16_full_eval bf16_full_eval tf32 local_rank ddp_find_unused_parameters: -
    # mtf needs no such option.
"""
# For recipes.finetune. The other flags are those of `_TRAIN`.
_FINETUNE = """
num_train_epochs epochs: (epochs={v})
learning_rate lr: (learning_rate={v}){as_trainer}
    # Seq2SeqTrainer has AdamW and a linear schedule, mtf Adafactor at a constant 0.001.
eval_strategy=epoch evaluation_strategy=epoch:
    evaluator.period={epoch}; trainer.eval_period={epoch}; checkpoint.save.period={epoch}
    | trainer.eval_period={epoch}; checkpoint.save.period={epoch} | -
    # eval_period is a number of steps; an epoch has {epoch}.
save_strategy: - # Checkpoints are written after evaluations, every eval_period steps.
load_best_model_at_end: - # The best checkpoint is always kept.
metric_for_best_model=loss: - # Without metrics, the loss ranks checkpoints.
metric_for_best_model: (metrics={metric})
"""
# For evaluation and inference.
_DECODE = """
model_name_or_path: checkpoint={v}
tokenizer_name: vocabulary={v} | data.vocabulary.path={v}
test_file: files={v} | data.files={v}
output_dir: output_dir={v}
per_device_eval_batch_size eval_batch_size: batch_size={v}
bf16_full_eval: dtype=bfloat16
max_source_length: data.task_feature_lengths.inputs={v} | task_feature_lengths.inputs={v}
max_target_length generation_max_length val_max_target_length: decoding.max_length={v}
    | decoding=@mtf.inference.DecodingConfig(method=beam, num_beams=1, max_length={v})
generation_num_beams num_beams: decoding={decoding}
do_predict: -
"""
_SCHEDULES = {"constant_with_warmup": "constant", "inverse_sqrt": "rsqrt"}
_OFF = ("False", "false")


def translate(
    name: str, value: str, given: Mapping[str, str | None], config: fdl.Config, recipe: str
) -> tuple[str, Sequence[str]]:
    """Returns a note for the user, and the proposals for a flag; none if transformers lacks it.

    Args:
      name: the name of the flag, with `_` and without `--`.
      value: its value, or a word that stands for it.
      given: all flags of the command line.
      config: the config of the recipe.
      recipe: the recipe as it was written.
    """
    trains = _at(config, "train_steps") is not None
    word = value.removeprefix("eval_").partition("_")[0]

    def find(*tables: str) -> str | None:
        entries = _entries("".join(tables))
        return entries.get(f"{name}={word}") or entries.get(name)

    is_finetune = recipe.startswith("recipes.finetune")
    found = find(_TRAIN, _FINETUNE if is_finetune else "") if trains else find(_DECODE)
    if found is None:
        return (" Nothing is trained.", ["-"]) if find(_TRAIN) else ("", [])
    text, _, note = found.partition(" # ")
    if value in _OFF and "{v}" not in text:
        text = "-"
    has_optimizer, has_schedule = "optimizer" in recipe, "schedule" in recipe
    as_trainer = " (optimizer=adamw)" * ("optim" not in given and not has_optimizer)
    as_trainer += " (schedule=linear)" * ("lr_scheduler_type" not in given and not has_schedule)
    filled = {"v": value, "as_trainer": as_trainer, **_facts(given, config)}
    proposals = [each.format_map(filled) for each in text.split(" | ")]
    if "{as_trainer}" in text and not as_trainer:
        note = ""
    return f" {note.format_map(filled)}" if note else "", proposals


def _entries(table: str) -> dict[str, str]:
    """Returns a dict mapping each name of a flag to its proposals and its note."""
    lines = re.sub(r"\n +", " ", table).strip().splitlines()
    pairs = (line.split(": ", 1) for line in lines if line)
    return {name: text for names, text in pairs for name in names.split()}


def _facts(flags: Mapping[str, str | None], config: fdl.Config) -> dict[str, Any]:
    """Returns the values for the names in braces, from all flags and the config."""

    def given(*names: str) -> str | None:
        return next(filter(None, map(flags.get, names)), None)

    def number(default: float, *names: str) -> float:
        try:
            value = float(given(*names) or "")
        except ValueError:
            return default
        return value if math.isfinite(value) else default

    start = _at(config, "checkpoint.restore.step", 0)
    end = _at(config, "train_steps", start + 1000)
    epochs = number(0, "num_train_epochs", "epochs")
    steps = int(number(end - start, "max_steps"))
    old_rate = _at(config, "optimizer.learning_rate.base_learning_rate", 1e-3)
    rates = ("learning_rate", "lr")
    kind = given("lr_scheduler_type") or "constant"
    kind = _SCHEDULES.get(kind, kind)
    schedule = f"kind={kind}, learning_rate={number(old_rate, *rates)}, steps={steps}"
    warmup = int(number(steps * number(0.0, "warmup_ratio"), "warmup_steps"))
    batches = ("per_device_train_batch_size", "train_batch_size")
    batch = number(0, *batches) * number(1, "gradient_accumulation_steps")
    held_out = _at(config, "data.mixture_or_task_name", "held_out")
    text, prefix = given("text_column") or "inputs", given("source_prefix")
    inputs = f"{prefix}{{{text}}}" if prefix else text
    dataset, subset = given("dataset_name"), given("dataset_config_name")
    run, metric = given("resume_from_checkpoint", "resume"), given("metric_for_best_model") or ""
    optimizer = (
        "optimizer=@mtf.training.{}(learning_rate=@mtf.builders.schedule.constant(learning_rate={}))"
    ).format
    return {
        "epoch": math.ceil((end - start) / epochs) if epochs > 0 else "examples / batch_size",
        "last": start + steps if number(0, "max_steps") else given("max_steps"),
        "kind": kind,
        "schedule": f"optimizer.learning_rate=@mtf.builders.schedule.finetuning({schedule}, "
        f"warmup_steps={warmup}, first_step={start})",
        # Adafactor's learning rates are relative to the size of a parameter; AdamW's are not.
        "adafactor": optimizer("AdafactorConfig", number(old_rate, *rates)),
        "adamw": optimizer("AdamWConfig", number(1e-4, *rates)),
        "batch": int(batch) or given(*batches),
        "decoding": "@mtf.inference.DecodingConfig(method=beam, "
        f"num_beams={given('generation_num_beams', 'num_beams')})",
        "period": _at(config, "trainer.eval_period", 1000),
        "metric": re.sub("^rouge.*", "rouge", metric.removeprefix("eval_")),
        "loss": f"training_eval/{held_out}/loss_per_target_token",
        "template": f"{inputs} ||| {given('summary_column') or 'targets'}",
        "dataset": repr((dataset, subset)) if subset else dataset,
        "own_data": "- recipes.finetune trains on files and datasets of your choice.",
        "run": "RUN" if run in (None, "True", "true") else run,
        "model_dir": given("output_dir") or _at(config, "model_dir", "RUN"),
    }


def _at(config: fdl.Config, path: str, default: Any = None) -> Any:
    value = follow(config, parse_path(path))
    return default if value in (NOWHERE, None) else value
