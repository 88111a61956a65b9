"""Translates flags of transformers' `Seq2SeqTrainingArguments` and `run_summarization.py`.

A flag has one or more translations, of which the first that fits the recipe is proposed:

* `PATH=VALUE` is a setting for `--set`. Several settings are separated by `; `. A part without `=`
  is a path that the config must have for the translation to fit.
* `(NAME=VALUE)` is an argument of the recipe.
* `python -m …` is a command.
* `-` means that the flag can be left out; a reason may follow.

Names in braces are the keys of `_facts`. A key `FLAG=WORD` is for only this value of a flag.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import fiddle as fdl

from mtf.config.paths import NOWHERE, follow, parse_path

_SCHEDULE = "optimizer.learning_rate=@mtf.builders.schedule.finetuning({schedule})"
_CONSTANT = "learning_rate=@mtf.builders.schedule.constant(learning_rate="
_ADAMW = f"optimizer=@mtf.training.AdamWConfig({_CONSTANT}{{adamw_rate}}))"
_ADAFACTOR = f"optimizer=@mtf.training.AdafactorConfig({_CONSTANT}{{rate}}))"
_EVALUATOR = "@mtf.evaluation.InferEvalConfig(period={period}"
_DECODING = "@mtf.inference.DecodingConfig({beams})"
_RESTORE = "@mtf.checkpoints.RestoreCheckpointConfig(path='{v}', mode=specific)"
_MONITOR = "checkpoint.save.metric_name_to_monitor"
_RANK = f"trainer.eval_period={{period}}; {_MONITOR}={{loss}}; checkpoint.save.metric_mode=min"
_NO_RANK = f"{_MONITOR}=None; checkpoint.save.metric_mode=None"
_OWN_DATA = "- recipes.finetune trains on files and datasets of your choice."
_WHOLE_BATCH = "batch_size counts the examples of an update, on all devices together."

_TRAIN: dict[str, tuple[str, ...]] = {
    # Duration and batches.
    "num_train_epochs": ("(epochs={v})", "train_steps={end}"),
    "max_steps": ("(steps={v})", "train_steps={last}"),
    "per_device_train_batch_size": ("batch_size={batch}", "(batch_size={batch})"),
    "per_device_eval_batch_size": ("-",),
    "auto_find_batch_size": ("auto_find_batch_size=True",),
    "gradient_accumulation_steps": ("trainer.num_microbatches={v}",),
    "group_by_length": ("trainer.trim_padding=True", "-"),
    # Optimizer and schedule.
    "learning_rate": (
        "optimizer.learning_rate.base_learning_rate={v}",
        "optimizer.learning_rate={v}",
        "(learning_rate={v})",
    ),
    "lr_scheduler_type": ("(schedule={kind})", _SCHEDULE),
    "warmup_steps": ("(warmup={v})", _SCHEDULE),
    "warmup_ratio": ("(warmup={v})", _SCHEDULE),
    "optim=adafactor": ("(optimizer=adafactor)", _ADAFACTOR),
    "optim=adamw": ("(optimizer=adamw)", _ADAMW),
    "adafactor": ("(optimizer=adafactor)", _ADAFACTOR),
    "adam_beta1": ("optimizer.beta2; optimizer.beta1={v}", f"{_ADAMW}; optimizer.beta1={{v}}"),
    "adam_beta2": ("optimizer.beta2={v}", f"{_ADAMW}; optimizer.beta2={{v}}"),
    "adam_epsilon": ("optimizer.epsilon={v}", f"{_ADAMW}; optimizer.epsilon={{v}}"),
    "weight_decay": (
        "optimizer.weight_decay_rate={v}; optimizer.weight_decay_rate_lr_exponent=1.0",
        "optimizer.weight_decay_rate={v}",
    ),
    "max_grad_norm": ("optimizer.global_norm_clip_threshold={v}",),
    "label_smoothing_factor": ("model.label_smoothing={v}",),
    # Numbers, devices and seeds.
    "bf16": ("model.network.dtype=bfloat16",),
    "fp16": ("model.network.dtype=bfloat16",),
    "gradient_checkpointing": ("model.network.remat_policy=full",),
    "fsdp": ("partitioner.fsdp=8",),
    "deepspeed": ("partitioner.fsdp=8",),
    "seed": ("random_seed={v}",),
    "data_seed": ("data.seed={v}",),
    # Evaluation, logs and checkpoints.
    "do_eval": ("-",),
    "do_predict": ("-",),
    "do_train": ("-",),
    "eval_steps": ("(eval_period={v})", "trainer.eval_period={v}"),
    "eval_on_start": ("trainer.run_eval_before_training=True",),
    "eval_strategy=no": (f"evaluator; trainer.eval_period=None; {_NO_RANK}; evaluator=None",),
    "eval_strategy": ("-",),
    "predict_with_generate": (f"evaluator={_EVALUATOR})",),
    "generation_num_beams": (
        f"evaluator.decoding={_DECODING}",
        f"evaluator={_EVALUATOR}, decoding={_DECODING})",
    ),
    "max_eval_samples": (
        "evaluator.num_examples={v}",
        f"evaluator={_EVALUATOR}, num_examples={{v}})",
    ),
    "metric_for_best_model=loss": (_RANK,),
    "metric_for_best_model": ("(metrics={v})",),
    "load_best_model_at_end": (_RANK,),
    "early_stopping_patience": ("(patience={v})", "trainer.early_stopping_patience={v}"),
    "logging_steps": ("trainer.stats_period={v}",),
    "logging_dir": ("model_dir={v}",),
    "output_dir": ("model_dir={v}",),
    "run_name": ("model_dir=runs/{v}",),
    "overwrite_output_dir": ("-",),
    "resume_from_checkpoint": ("python -m mtf.run --from {run}",),
    "save_steps": ("(eval_period={v})", "checkpoint.save.period={v}"),
    "save_strategy=no": ("checkpoint.save.period=None",),
    "save_strategy": ("-",),
    "save_total_limit": ("checkpoint.save.keep={v}",),
    "report_to=wandb": ("trackers=@mtf.training.trackers.Wandb",),
    "report_to=mlflow": ("trackers=@mtf.training.trackers.MLflow",),
    "report_to=none": ("trackers=()",),
    "report_to": ("-",),
    "push_to_hub": ("python -m mtf.convert {model_dir} exported --to hf",),
    # Model and data.
    "model_name_or_path": (
        "(checkpoint={v})",
        "checkpoint.restore.path={v}",
        f"checkpoint.restore={_RESTORE}",
    ),
    "tokenizer_name": ("(vocabulary={v})", "data.vocabulary.path={v}"),
    "dataset_name": ("(dataset={dataset})", _OWN_DATA),
    "dataset_config_name": ("(dataset={dataset})", _OWN_DATA),
    "train_file": ("(train={v})", "data.files={v}", _OWN_DATA),
    "validation_file": ("(validation={v})", _OWN_DATA),
    "text_column": ("(template={template})", _OWN_DATA),
    "summary_column": ("(template={template})", _OWN_DATA),
    "source_prefix": ("(template={template})", _OWN_DATA),
    "max_source_length": ("data.task_feature_lengths.inputs={v}",),
    "max_target_length": ("data.task_feature_lengths.targets={v}",),
}
# For evaluation and inference.
_DECODE: dict[str, tuple[str, ...]] = {
    "model_name_or_path": ("checkpoint={v}",),
    "tokenizer_name": ("vocabulary={v}", "data.vocabulary.path={v}"),
    "test_file": ("files={v}", "data.files={v}"),
    "output_dir": ("output_dir={v}",),
    "per_device_eval_batch_size": ("batch_size={v}",),
    "bf16_full_eval": ("dtype=bfloat16",),
    "max_source_length": (
        "data.task_feature_lengths.inputs={v}",
        "task_feature_lengths.inputs={v}",
    ),
    "max_target_length": (
        "decoding.max_length={v}",
        "decoding=@mtf.inference.DecodingConfig(method=beam, num_beams=1, max_length={v})",
    ),
    "generation_num_beams": (f"decoding={_DECODING}",),
    "do_predict": ("-",),
}
_OTHER_NAMES = {
    "lr": "learning_rate",
    "epochs": "num_train_epochs",
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "evaluation_strategy": "eval_strategy",
    "num_beams": "generation_num_beams",
    "generation_max_length": "max_target_length",
    "val_max_target_length": "max_target_length",
    "hub_model_id": "push_to_hub",
}
_NOTES = {
    "num_train_epochs": "Only recipes.finetune counts epochs.",
    "per_device_train_batch_size": _WHOLE_BATCH,
    "per_device_eval_batch_size": "Evaluations have the batch size of the training.",
    "gradient_accumulation_steps": f"{_WHOLE_BATCH} It is split into microbatches.",
    "group_by_length": "Padding after the longest row of a batch can be cut.",
    "fp16": "T5 overflows in float16.",
    "fsdp": "The parameters can be split over a number of devices, such as 8.",
    "deepspeed": "The parameters can be split over a number of devices, such as 8.",
    "do_train": "The recipe says what a run does.",
    "do_eval": "A run evaluates if its data has a held-out part.",
    "do_predict": "recipes.infer predicts.",
    "eval_strategy": "trainer.eval_period is a number of steps.",
    "save_strategy": "checkpoint.save.period is a number of steps.",
    "overwrite_output_dir": "A run is resumed if its model_dir exists. Set another model_dir.",
    "report_to": "TensorBoard events are always written.",
    "push_to_hub": "After the run, hf upload NAME exported uploads what this command exports.",
}
_KINDS = {"constant_with_warmup": "constant", "inverse_sqrt": "rsqrt"}
_OFF = ("False", "false", "0", "no")


class Translation(NamedTuple):
    """The translations of a flag, with all names filled in, and a note for the user."""

    alternatives: Sequence[str]
    note: str


def translate(
    name: str, value: str, given: Mapping[str, str | None], config: fdl.Config | None
) -> Translation | None:
    """Returns the translations of a flag, or None if transformers has no such flag.

    Args:
      name: the name of the flag, with `_` and without `--`.
      value: its value, or a word that stands for it.
      given: all flags of the command line.
      config: the config of the recipe; None if the recipe cannot be called.
    """
    trains = config is None or _at(config, "train_steps") is not None
    name = _OTHER_NAMES.get(name, name)
    if not trains and name not in _DECODE:
        is_known = any(key.partition("=")[0] == name for key in _TRAIN)
        return Translation(("-",), " Nothing is trained.") if is_known else None
    table = _TRAIN if trains else _DECODE
    found = table.get(f"{name}={value.removeprefix('eval_').partition('_')[0]}")
    if found is None:
        found = table.get(name)
        if found is None:
            return None
        if value in _OFF and not any("{" in text for text in found):
            found = ("-",)
    filled = {"v": value, **_facts(given, config)}
    note = f" {_NOTES[name]}" if name in _NOTES else ""
    return Translation([text.format_map(filled) for text in found], note)


def _facts(flags: Mapping[str, str | None], config: fdl.Config | None) -> dict[str, Any]:
    """Returns the values for the names in braces, from all flags and the config."""
    given = {_OTHER_NAMES.get(name, name): value for name, value in flags.items()}

    def number(flag: str, default: float) -> float:
        try:
            value = float(given.get(flag) or "")
        except ValueError:
            return default
        return value if math.isfinite(value) else default

    start = _at(config, "checkpoint.restore.step", 0)
    end = _at(config, "train_steps", start + 1000)
    steps = int(number("max_steps", end - start))
    old_rate = _at(config, "optimizer.learning_rate.base_learning_rate", 1e-3)
    rate = number("learning_rate", old_rate)
    kind = given.get("lr_scheduler_type") or "constant"
    kind = _KINDS.get(kind, kind)
    warmup = int(number("warmup_steps", steps * number("warmup_ratio", 0.0)))
    batch = number("per_device_train_batch_size", 0) * number("gradient_accumulation_steps", 1)
    beams = f"method=beam, num_beams={given.get('generation_num_beams')}"
    held_out = _at(config, "data.mixture_or_task_name", "held_out")
    text, summary = (given.get(f"{name}_column") for name in ("text", "summary"))
    text, prefix = text or "inputs", given.get("source_prefix")
    dataset, subset = given.get("dataset_name"), given.get("dataset_config_name")
    run = given.get("resume_from_checkpoint")
    return {
        "end": end,
        "last": start + steps if number("max_steps", 0) else given.get("max_steps"),
        "rate": rate,
        # Adafactor's learning rates are relative to the size of a parameter; AdamW's are not.
        "adamw_rate": number("learning_rate", 1e-4),
        "kind": kind,
        "schedule": f"kind={kind}, learning_rate={rate}, steps={steps}, warmup_steps={warmup}, "
        f"first_step={start}",
        "batch": int(batch) or given.get("per_device_train_batch_size"),
        "beams": beams,
        "period": _at(config, "trainer.eval_period", 1000),
        "loss": f"training_eval/{held_out}/loss_per_target_token",
        "template": f"{prefix}{{{text}}} ||| {summary or 'targets'}"
        if prefix
        else f"{text} ||| {summary or 'targets'}",
        "dataset": repr((dataset, subset)) if subset else dataset,
        "run": "RUN" if run in (None, "True", "true") else run,
        "model_dir": _at(config, "model_dir", "RUN"),
    }


def _at(config: fdl.Config | None, path: str, default: Any = None) -> Any:
    value = NOWHERE if config is None else follow(config, parse_path(path))
    return default if value in (NOWHERE, None) else value
