"""Fine-tunes any checkpoint of the T5 family on any data.

The defaults come from Raffel et al. 2020 (https://arxiv.org/abs/1910.10683, section 3.1.2 and
appendix B) and Roberts et al. 2022 (https://arxiv.org/abs/2203.17189).
"""

from __future__ import annotations

from typing import Literal

import fiddle as fdl

from mtf import builders
from mtf.base.errors import UserError
from mtf.builders.start import Start
from mtf.checkpoints import CheckpointConfig, SaveCheckpointConfig
from mtf.data import TaskMixtureConfig
from mtf.evaluation import InferEvalConfig
from mtf.jobs import Train
from mtf.training import AdafactorConfig, TrainerConfig

# The largest lengths that are chosen by default, in tokens.
_LIMITS = {"inputs": 1024, "targets": 256}
_UNKNOWN_LENGTHS = {"inputs": 512, "targets": 128}


def finetune(
    checkpoint: str,
    train: str | None = None,
    validation: str | None = None,
    dataset: str | None = None,
    subset: str | None = None,
    mixture: str | None = None,
    module: str | None = None,
    inputs: str | None = None,
    targets: str | None = None,
    template: str | None = None,
    metrics: str | tuple[str, ...] = (),
    answer_choices: tuple[str, ...] | None = None,
    steps: int = 1000,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    eval_period: int | None = None,
    patience: int | None = None,
    inputs_length: int | None = None,
    targets_length: int | None = None,
    dropout_rate: float = 0.1,
    vocabulary: str | None = None,
    config: str | None = None,
    cache_dir: str | None = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    hardware: Literal["cpu", "accelerator"] | None = None,
) -> fdl.Config[Train]:
    """Fine-tunes any T5, mT5, mT0, Flan-T5, ByT5, umT5, Aya or MADLAD-400 on your data.

    The network, the vocabulary and the step are read from the checkpoint. As in the fine-tuning of
    T5, a new Adafactor optimizer with a constant learning rate of 0.001 is used, and the dropout
    rate is 0.1. Examples are not packed, and the loss is the mean over the tokens of a batch.

    Command: `python -m mtf.run "recipes.finetune(checkpoint='google/t5-v1_1-small',
    train='train.tsv', validation='dev.tsv')"`. See docs/finetuning.md for more.
    Hardware: any. CPUs use float32 and unrolled layers; GPUs and TPUs use bfloat16 and scanned
    layers. The batch is split across all devices. For models with a billion parameters or more,
    parameters and optimizer state are also split, and layers are recomputed in the backward pass.
    Expect: an evaluation after every tenth of the steps, the best and the newest checkpoint, and
    at the end the best score, predictions, and the command that exports the best checkpoint.

    Args:
      checkpoint: a run directory, an mtf or T5X checkpoint, a Hugging Face directory, a model on
        the Hugging Face hub, or a remote path of any of these.
      train: the path or pattern of `.tsv`, `.jsonl`, `.json` or `.parquet` files, or a split of
        `dataset` or `mixture`, by default "train".
      validation: files or a split, as for `train`; by default the split "validation". If there are
        no files for validation, nothing is evaluated, and the last checkpoint is the result.
      dataset: a dataset on the Hugging Face hub or in the local mirror.
      subset: configuration of the dataset, if the dataset has several.
      mixture: a mixture or a task, which may be a custom one.
      module: Python module that registers the mixture, such as `my_tasks`.
      inputs: name of a column, or a Jinja template over columns; by default the column `inputs`. If
        neither `inputs` nor `targets` is set, TSV files need no header.
      targets: name of a column, or a template; by default the column `targets`.
      template: a single template for inputs and targets, such as "translate: {en} ||| {ro}".
      metrics: metrics of decoded text, such as "accuracy" or ("bleu", "rouge"). The first metric
        determines the best checkpoint. Without metrics, or for a mixture, validation loss does.
      answer_choices: all possible targets, which classification metrics such as "f1" need.
      steps: number of updates, counted from the step of the checkpoint.
      batch_size: number of examples in a batch.
      learning_rate: the constant learning rate.
      eval_period: number of steps between evaluations and checkpoints; by default `steps` / 10.
      patience: number of evaluations without improvement after which training ends early.
      inputs_length: maximum number of input tokens; longer inputs are truncated. The default is
        1.25 times the maximum in the first 1,000 examples, but at most 1,024. It is 512 if these
        examples are not on this machine, or if a mixture is used.
      targets_length: the same for targets, with 256 instead of 1,024, and 128 instead of 512.
      dropout_rate: dropout rate, which replaces the dropout rate of the checkpoint.
      vocabulary: "t5", "mt5", "byt5" or a SentencePiece model, if the checkpoint contains none.
      config: path of the config.json of a run or a Hugging Face model; None for the checkpoint's.
      cache_dir: token cache; if this is None, the data is tokenized into memory.
      dtype: dtype of the activations, which replaces the default for the hardware.
      hardware: "cpu" or "accelerator" (GPU or TPU), the hardware of the machine that will train, if
        the recipe is called on another machine.
    """
    start = builders.start.open_start(checkpoint, vocabulary, config)
    names = (metrics,) if isinstance(metrics, str) else metrics
    if mixture is not None:
        columns = {"inputs": inputs, "targets": targets, "template": template}
        choices = {"subset": subset, "answer_choices": answer_choices}
        _refuse("mixture", dataset=dataset, **columns, **choices)
        data = fdl.Config(
            TaskMixtureConfig,
            mixture_or_task_name=mixture,
            module=module,
            loader="memory" if cache_dir is None else "cache",
            cache_dir=cache_dir,
            split=train or "train",
            eval_split=validation or "validation",
            vocabulary=start.vocabulary,
            task_feature_lengths=dict(_UNKNOWN_LENGTHS),
        )
    else:
        if module is not None:
            raise UserError(
                "module is set without mixture. Set mixture to a task or mixture of the module."
            )
        data = _columns_data(
            start, train, validation, dataset, subset, inputs, targets, template, names
        )
        data.task.answer_choices, data.cache_dir = answer_choices, cache_dir
        data.loader = "memory" if cache_dir is None else "cache"
        if inputs_length is None or targets_length is None:
            data.task_feature_lengths = builders.data.fitting_lengths(data, _LIMITS)
    data.pack = False
    for name, length in (("inputs", inputs_length), ("targets", targets_length)):
        if length is not None:
            data.task_feature_lengths[name] = length

    period = eval_period or max(steps // 10, 1)
    save = fdl.Config(SaveCheckpointConfig, period=period, keep=1)
    evaluates = data.eval_split is not None
    if evaluates:
        save.metric_name_to_monitor, save.metric_mode = _monitored(data, names)
    elif names or patience is not None:
        what = "metrics" if names else "patience"
        raise UserError(f"{what} needs validation data. Set validation to a file.")
    return fdl.Config(
        Train,
        model=builders.start.model(start, dropout_rate, dtype, hardware),
        data=data,
        optimizer=fdl.Config(
            AdafactorConfig, builders.schedule.constant(learning_rate), step_offset=start.step
        ),
        train_steps=start.step + steps,
        batch_size=batch_size,
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
            metrics=names if mixture is not None else None,
        )
        if names
        else None,
        partitioner=builders.start.partitioner(start),
        checkpoint=fdl.Config(CheckpointConfig, save=save, restore=start.restore),
    )


def _columns_data(
    start: Start,
    train: str | None,
    validation: str | None,
    dataset: str | None,
    subset: str | None,
    inputs: str | None,
    targets: str | None,
    template: str | None,
    metrics: tuple[str, ...],
) -> fdl.Config[TaskMixtureConfig]:
    """Returns a data config that makes examples from the columns of files or of a dataset."""
    is_pair = inputs is None and targets is None and template is None
    if template is not None:
        _refuse("template", inputs=inputs, targets=targets)
        inputs, targets = builders.data.split_template(template)
    columns = {
        "inputs": inputs or "inputs",
        "targets": targets or "targets",
        "vocabulary": start.vocabulary,
        "task_feature_lengths": dict(_UNKNOWN_LENGTHS),
        "metrics": metrics,
    }
    if dataset is not None:
        data = builders.data.hub(
            dataset,
            subset=subset,
            split=train or "train",
            eval_split=validation or "validation",
            **columns,
        )
    elif train is None:
        raise UserError(
            "No data was given. Set train to a file, dataset to a dataset on the Hugging Face hub, "
            "or mixture to a mixture or task."
        )
    else:
        files = {"train": train} | ({} if validation is None else {"validation": validation})
        data = builders.data.files(files, **columns)
        data.task.tsv_header = not is_pair
    data.task.inputs_add_eos = start.inputs_add_eos
    return data


def _monitored(
    data: fdl.Config[TaskMixtureConfig], metrics: tuple[str, ...]
) -> tuple[str, Literal["max", "min"]]:
    """Returns the metric that ranks checkpoints, and which value is the best ("max" or "min")."""
    name = data.mixture_or_task_name
    if not metrics or data.task is None:
        return f"training_eval/{name}/loss_per_target_token", "min"
    from mtf.evaluation.metrics import METRICS, score_names  # This import loads NumPy.

    score = next(iter(score_names(metrics).values()))
    return f"inference_eval/{name}/{score}", METRICS[metrics[0]].best


def _refuse(what: str, **others: object) -> None:
    """Raises UserError if any of `others`, which cannot be combined with `what`, is not None."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise UserError(
            f"{what} is set, so {', '.join(given)} would be ignored. Set only one of them."
        )
