"""Fine-tunes any checkpoint of the T5 family on any data.

The defaults come from Raffel et al. 2020 (https://arxiv.org/abs/1910.10683, section 3.1.2 and
appendix B) and Roberts et al. 2022 (https://arxiv.org/abs/2203.17189).
"""

from __future__ import annotations

import math
import re
from typing import Literal

import fiddle as fdl

from mtf import builders
from mtf.base.environment import has_accelerator
from mtf.base.errors import UserError
from mtf.builders.schedule import ScheduleKind
from mtf.builders.start import Start
from mtf.checkpoints import CheckpointConfig, SaveCheckpointConfig
from mtf.data import HubStreamConfig, TaskMixtureConfig
from mtf.evaluation import InferEvalConfig
from mtf.jobs import Train
from mtf.training import AdafactorConfig, AdamWConfig, TrainerConfig

# The largest lengths that are chosen by default, in tokens.
_LIMITS = {"inputs": 1024, "targets": 256}
_UNKNOWN_LENGTHS = {"inputs": 512, "targets": 128}


def finetune(
    checkpoint: str,
    train: str | None = None,
    validation: str | float | None = None,
    dataset: str | tuple[str, str] | None = None,
    streaming: bool = False,
    mixture: str | None = None,
    template: str | None = None,
    metrics: str | tuple[str, ...] = (),
    steps: int | None = None,
    epochs: float | None = None,
    batch_size: int | Literal["auto"] = 32,
    optimizer: Literal["adafactor", "adamw"] = "adafactor",
    learning_rate: float | None = None,
    schedule: ScheduleKind = "constant",
    warmup: float = 0,
    eval_period: int | None = None,
    patience: int | None = None,
    lengths: tuple[int, int] | None = None,
    vocabulary: str | None = None,
    config: str | None = None,
    cache_dir: str | None = None,
) -> fdl.Config[Train]:
    """Fine-tunes any model of the T5 family, from T5 and ByT5 to UL2 and CodeT5, on your data.

    The network, the vocabulary and the step are read from the checkpoint. As in the fine-tuning of
    T5, the default is a new Adafactor optimizer with a constant learning rate of 0.001, and the
    dropout rate is 0.1. Examples are not packed. The loss is the mean over the tokens of a batch.

    Command: `python -m mtf.run "recipes.finetune(checkpoint='google/t5-v1_1-small',
    train='train.csv', validation='5%')"`. See docs/finetuning.md for more.
    Hardware: any. CPUs use float32 and unrolled layers; GPUs and TPUs use bfloat16 and scanned
    layers, and recompute entire layers in the backward pass only if memory requires it. The batch
    is split across all devices. For models with a billion parameters or more, parameters and
    optimizer state are also split.
    To print a run for another machine, set the environment variable JAX_PLATFORMS to the kind of
    its devices (cpu, cuda or tpu). `mtf plan` follows its target.
    Expect: an evaluation after every tenth of the steps, the best and the newest checkpoint, and
    at the end the best score, predictions, and the command that exports the best checkpoint.

    Args:
      checkpoint: a run directory, an mtf or T5X checkpoint, a Hugging Face directory, a model on
        the Hugging Face hub, or a remote path of any of these.
      train: the path or pattern of `.csv`, `.tsv`, `.jsonl`, `.json` or `.parquet` files, or a
        split of `dataset` or `mixture`, by default "train".
      validation: files or a split, as for `train`; by default the split "validation". A fraction
        such as 0.05 or "5%" holds out that part of `train`, chosen at random. If there are no files
        for validation, nothing is evaluated, and the last checkpoint is the result.
      dataset: a dataset on the Hugging Face hub or in the local mirror, or a tuple of the dataset
        and its configuration, such as ("super_glue", "rte").
      streaming: whether to read `dataset` during training, without downloading all of it first. A
        window of 1,024 examples is shuffled at a time, and a resumed run continues exactly. The
        first 1,000 examples of `validation` are evaluated. The number of examples is unknown, so
        neither `epochs` nor a fraction for `validation` can be used.
      mixture: a mixture or a task. If your own module registers it, add `--set data.module=MODULE`.
      template: the inputs and the targets, separated by `|||`. Each is the name of a column, a text
        with columns, such as "translate: {en} ||| {ro}", or a Jinja template. By default, they are
        the columns `inputs` and `targets`, and TSV files need no header. CSV files always have one.
      metrics: metrics of decoded text, such as "accuracy" or ("bleu", "rouge"). The first metric
        determines the best checkpoint. Without metrics, or for a mixture, validation loss does.
        Classification metrics such as "f1" need `--set "data.task.answer_choices=('no', 'yes')"`.
      steps: number of updates, counted from the step of the checkpoint; by default 1,000.
      epochs: number of passes over the training examples, instead of `steps`.
      batch_size: number of examples in a batch. "auto" is the largest power of two, up to 1,024 (on
        CPUs 32), whose compiled step fits into 90% of the devices' memory. As with transformers'
        `auto_find_batch_size`, the batch is halved until it fits; the run's config stores the size.
      optimizer: "adafactor" or "adamw". For others, add `--set optimizer=@…`.
      learning_rate: the highest learning rate; by default 0.001 for Adafactor, whose rates are
        relative to the size of a parameter, and 0.0001 for AdamW.
      schedule: how the learning rate decays after the warm-up: "constant", "linear" (to 0),
        "cosine" (to 0) or "rsqrt".
      warmup: number of steps in which the learning rate rises linearly, or a fraction of all steps.
      eval_period: number of steps between evaluations and checkpoints; by default `steps` / 10.
      patience: number of evaluations without improvement after which training ends early.
      lengths: maximum numbers of input and target tokens; longer texts are truncated. The defaults
        are 1.25 times the maximum in the first 1,000 examples, but at most 1,024 and 256. They are
        512 and 128 if these examples are not on this machine, or if a mixture is used.
      vocabulary: "t5", "mt5", "byt5", a SentencePiece model or a tokenizer.json, if the checkpoint
        contains none.
      config: path of the config.json of a run or a Hugging Face model; None for the checkpoint's.
      cache_dir: token cache; if this is None, the data is tokenized into memory.
    """
    if steps is not None and epochs is not None:
        raise UserError("steps and epochs are both set. Set only one of them.")
    finds_size = batch_size == "auto"
    if batch_size == "auto":
        if epochs is not None:
            raise UserError("epochs needs a batch size. Set steps, or batch_size to a number.")
        batch_size = 1024 if has_accelerator() else 32
    validation, held_out = _as_fraction(validation)
    if streaming:
        _check_streaming(dataset, held_out, epochs, cache_dir)
    start = builders.start.open_start(checkpoint, vocabulary, config)
    names = (metrics,) if isinstance(metrics, str) else metrics
    if mixture is not None:
        if dataset is not None or template is not None:
            other = "template" if dataset is None else "dataset"
            raise UserError(f"mixture is set, so {other} would be ignored. Set only one of them.")
        if held_out is not None or epochs is not None:
            given, instead = ("epochs", "steps") if held_out is None else ("validation", "a split")
            raise UserError(f"{given} needs files or a dataset, not a mixture. Set {instead}.")
        data = fdl.Config(
            TaskMixtureConfig,
            mixture_or_task_name=mixture,
            loader="memory" if cache_dir is None else "cache",
            cache_dir=cache_dir,
            vocabulary=start.vocabulary,
            task_feature_lengths=dict(_UNKNOWN_LENGTHS),
        )
    elif streaming and dataset is not None:
        data = _streamed_data(start, dataset, template)
    else:
        data = _columns_data(start, train, validation, dataset, template, names, cache_dir)
    if mixture is not None or dataset is not None:
        data.split, data.eval_split = train or "train", validation or "validation"
    if held_out is not None:
        if dataset is not None and data.split != "train":
            raise UserError(f"validation={held_out} divides the split train, not {train!r}.")
        data.task.held_out, data.eval_split = held_out, "validation"
    if lengths is not None:
        data.task_feature_lengths = dict(zip(_LIMITS, lengths, strict=True))
    elif mixture is None and not streaming:
        data.task_feature_lengths = builders.data.fitting_lengths(data, _LIMITS)
    data.pack = False
    if epochs is not None:
        steps = math.ceil(epochs * builders.data.num_records(data) / batch_size)
    elif steps is None:
        steps = 1000

    period = eval_period or max(steps // 10, 1)
    save = fdl.Config(SaveCheckpointConfig, period=period, keep=1)
    evaluates = data.eval_split is not None
    if evaluates:
        save.metric_name_to_monitor, save.metric_mode = _monitored(data, names)
    elif names or patience is not None:
        what = "metrics" if names else "patience"
        raise UserError(f"{what} needs validation data. Set validation to a file.")
    if learning_rate is None:
        learning_rate = 1e-3 if optimizer == "adafactor" else 1e-4
    warmup_steps = round(warmup * steps if 0 < warmup < 1 else warmup)
    rate = builders.schedule.finetuning(
        schedule, learning_rate, steps, warmup_steps, first_step=start.step
    )
    return fdl.Config(
        Train,
        model=builders.start.model(start, dropout_rate=0.1),
        data=data,
        optimizer=fdl.Config(AdamWConfig, rate)
        if optimizer == "adamw"
        else fdl.Config(AdafactorConfig, rate, step_offset=start.step),
        train_steps=start.step + steps,
        batch_size=batch_size,
        auto_find_batch_size=finds_size,
        trainer=fdl.Config(
            TrainerConfig,
            stats_period=min(period, 20),
            eval_period=period if evaluates else None,
            eval_steps=None,
            early_stopping_patience=patience,
            trim_padding=True,
        ),
        evaluator=fdl.Config(
            InferEvalConfig,
            period=period,
            num_examples=None,
            metrics=names if mixture is not None or streaming else None,
        )
        if names
        else None,
        partitioner=builders.start.partitioner(start),
        checkpoint=fdl.Config(CheckpointConfig, save=save, restore=start.restore),
    )


def _as_fraction(validation: str | float | None) -> tuple[str | None, float | None]:
    """Returns a pair of files or a split, and the fraction to hold out; at least one is None."""
    if isinstance(validation, str):
        number = re.fullmatch(r"(\d*\.?\d+) *(%?)", validation)
        if number is None:
            return validation, None
        validation = float(number[1]) / (100 if number[2] else 1)
    if validation is not None and not 0 < validation < 1:
        raise UserError(
            f"validation: the fraction {validation:g} is not between 0 and 1; expected, for "
            "example, 0.05 or '5%'."
        )
    return None, validation


def _check_streaming(
    dataset: str | tuple[str, str] | None,
    held_out: float | None,
    epochs: float | None,
    cache_dir: str | None,
) -> None:
    """Raises UserError if an argument cannot be used with `streaming`."""
    if dataset is None:
        raise UserError("streaming needs a dataset. Set dataset, or leave out streaming.")
    instead = {
        "epochs": (epochs, "steps, because the number of examples is unknown"),
        "validation": (held_out, "validation to a split, because a stream cannot be divided"),
        "cache_dir": (cache_dir, "only one of them, because a cache contains the whole dataset"),
    }
    refused = [f"{name}: set {to}" for name, (value, to) in instead.items() if value is not None]
    if refused:
        raise UserError(f"streaming=True cannot be used with {'; '.join(refused)}.")


def _streamed_data(
    start: Start, dataset: str | tuple[str, str], template: str | None
) -> fdl.Config[HubStreamConfig]:
    """Returns a data config that streams examples from the columns of a dataset."""
    inputs, targets = builders.data.split_template(template or "inputs ||| targets")
    name, subset = (dataset, None) if isinstance(dataset, str) else dataset
    return fdl.Config(
        HubStreamConfig,
        dataset=name,
        subsets=None if subset is None else {subset: 1.0},
        inputs=inputs,
        targets=targets,
        num_streams=1,
        eval_documents=1000,
        inputs_add_eos=start.inputs_add_eos,
        vocabulary=start.vocabulary,
        task_feature_lengths=dict(_UNKNOWN_LENGTHS),
    )


def _columns_data(
    start: Start,
    train: str | None,
    validation: str | None,
    dataset: str | tuple[str, str] | None,
    template: str | None,
    metrics: tuple[str, ...],
    cache_dir: str | None,
) -> fdl.Config[TaskMixtureConfig]:
    """Returns a data config that makes examples from the columns of files or of a dataset."""
    inputs, targets = builders.data.split_template(template or "inputs ||| targets")
    settings = {
        "inputs": inputs,
        "targets": targets,
        "metrics": metrics,
        "vocabulary": start.vocabulary,
        "task_feature_lengths": dict(_UNKNOWN_LENGTHS),
        "cache_dir": cache_dir,
    }
    if dataset is not None:
        data = builders.data.hub(dataset, **settings)
    elif train is None:
        raise UserError(
            "No data was given. Set train to a file, dataset to a dataset on the Hugging Face hub, "
            "or mixture to a mixture or task."
        )
    else:
        files = {"train": train} | ({} if validation is None else {"validation": validation})
        data = builders.data.files(files, **settings)
        data.task.tsv_header = template is not None
    data.task.inputs_add_eos = start.inputs_add_eos
    return data


def _monitored(
    data: fdl.Config[TaskMixtureConfig] | fdl.Config[HubStreamConfig], metrics: tuple[str, ...]
) -> tuple[str, Literal["max", "min"]]:
    """Returns the metric that ranks checkpoints, and which value is the best ("max" or "min")."""
    if fdl.get_callable(data) is HubStreamConfig:
        subset = "".join(f"_{name}" for name in data.subsets or ())
        name, decoded, has_metrics = f"{data.eval_split}{subset}", "held_out", True
    else:
        name = decoded = data.mixture_or_task_name
        has_metrics = data.task is not None
    if not metrics or not has_metrics:
        return f"training_eval/{name}/loss_per_target_token", "min"
    from mtf.evaluation.metrics import find, score_names  # This import loads NumPy.

    score = next(iter(score_names(metrics).values()))
    return f"inference_eval/{decoded}/{score}", find(metrics[0]).best
