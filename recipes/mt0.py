"""mT0: multitask prompted fine-tuning of mT5, and LM adaptation before it.

Sources: https://github.com/bigscience-workshop/multilingual-t0, its README.md ("the page") and its
gin files and scripts ("the repository"), which differ from the page; T5X's
configs/runs/finetune.gin for their defaults; https://arxiv.org/abs/2211.01786 for released models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import fiddle as fdl

from mtf import builders
from mtf.data import (
    HubStreamConfig,
    PrefixLM,
    SpanCorruption,
    TaskMixtureConfig,
    TextCorporaConfig,
    TextFilesConfig,
)
from mtf.jobs import Evaluate, Train
from mtf.partitioning import FULLY_SHARDED_AXIS_RULES, PartitionerConfig
from mtf.training import AdafactorConfig, TrainerConfig


def mt0_small(
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
    train_steps: int | None = None,
) -> fdl.Config[Train]:
    """mT0 small (300M): as `mt0_xxl`, on one device.

    Command: `python -m mtf.run recipes.mt0_small`.
    Hardware: the page names none; the released model of this size, on xP3, took a TPU v4-64.
    Expect: no score was published for this setting.
    """
    return _train("small", cache_dir, vocabulary, checkpoint, train_steps)


def mt0_base(
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
    train_steps: int | None = None,
) -> fdl.Config[Train]:
    """mT0 base (580M): as `mt0_xxl`, on one device.

    Command: `python -m mtf.run recipes.mt0_base`.
    Hardware: the page names none; the released model of this size, on xP3, took a TPU v4-64.
    Expect: no score was published for this setting.
    """
    return _train("base", cache_dir, vocabulary, checkpoint, train_steps)


def mt0_large(
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
    train_steps: int | None = None,
) -> fdl.Config[Train]:
    """mT0 large (1.2B): as `mt0_xxl`, on one device.

    Command: `python -m mtf.run recipes.mt0_large`.
    Hardware: the page names none; the released model of this size, on xP3, took a TPU v4-64.
    Expect: no score was published for this setting.
    """
    return _train("large", cache_dir, vocabulary, checkpoint, train_steps)


def mt0_xl(
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
    train_steps: int | None = None,
) -> fdl.Config[Train]:
    """mT0 XL (3.7B): as `mt0_xxl`, but for the size.

    Command: `python -m mtf.run recipes.mt0_xl`.
    Hardware: the page names none; the repository splits the model over 4 chips of a TPU v4 pod.
    Expect: no score was published for this setting.
    """
    return _train("xl", cache_dir, vocabulary, checkpoint, train_steps)


def mt0_xxl(
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
    train_steps: int | None = None,
) -> fdl.Config[Train]:
    """mT0 XXL (13B): T0++'s prompts on mT5, as on the project's page.

    Paper: none for this setting; `mt0_xxl_xmtf` is the published model.
    Source checkpoint: T5X's mt5_xxl (mt5_SIZE) at step 1,000,000.
    The original command: T5X's `train.py` with its XXL and finetune gin files, mixture
    `mt5_d4_gpt_sglue_train` without a cache, inputs and targets of 256 tokens, to step 1,125,000.
    Command: `python -m mtf.run recipes.mt0_xxl`, which renders and tokenizes during training;
    or `python -m mtf.cache mt5_d4_gpt_sglue_train --output CACHE`, then
    `python -m mtf.run "recipes.mt0_xxl(cache_dir='CACHE')"`.
    Hardware: the page names none; the repository splits the model over 4 chips of a TPU v4 pod.
    Expect: no score was published for this setting; `mt0_eval` with `inputs_add_eos=True` evaluates
    it.

    The mixture is that of the commit of this command (7d79f4a, 2021-11-07), in which inputs end
    with EOS, unless SeqIO cuts them off at 256 tokens. The repository's later mixtures, such as
    `t0_plus_plus_train`, have no EOS on inputs.

    Deviations, the same for all sizes:
      * The initial checkpoint is T5X's conversion of the page's mt5/xxl/model.ckpt-1000000.
      * The network is mT5's; the page includes T5 1.1's XXL gin file, whose 32,128 embedding rows
        are fewer than mT5's vocabulary.
      * XL and XXL are split over 4 partitions and fully sharded, as in the repository, and layers
        are recomputed in the backward pass; one partition and the standard rules, as in
        finetune.gin, could not hold them.
      * With `cache_dir`, inputs that are cut off also end with EOS.
      * There is no evaluation during training, as in the repository; finetune.gin would evaluate
        20 batches of each of 464 tasks every 1,000 steps.
      * The seeds are fixed; finetune.gin draws new ones at every start.

    This recipe follows the page. The repository has inputs of 1024 tokens
    (`--set data.task_feature_lengths.inputs=1024`), batches of 1024 in 16 microbatches
    (`--set batch_size=1024 trainer.num_microbatches=16`), 1,025,000 steps, a checkpoint every 500,
    and a loss divided by 234,496 (`--set model.loss_normalizing_factor=234496`), the target tokens
    in mT5's pretraining batch, which does not change Adafactor's updates.

    Args:
      cache_dir: output of `python -m mtf.cache`; None renders and tokenizes through SeqIO.
      vocabulary: mT5's SentencePiece model.
      checkpoint: another initial checkpoint, such as a local copy.
      train_steps: number of the last step; None means 125,000 steps after the initial checkpoint.
    """
    return _train("xxl", cache_dir, vocabulary, checkpoint, train_steps)


def mt0_xxl_xmtf(
    files: str | tuple[str, ...] = "xP3/*/merged_*.jsonl",
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
    finetuning_steps: int = 30_000,
) -> fdl.Config[Train]:
    """mT0 XXL (13B) as released: mT5 XXL on xP3, in 46 languages.

    Paper: Muennighoff et al. 2023, https://arxiv.org/abs/2211.01786, section 3.
    Source checkpoint: T5X's mt5_xxl at step 1,000,000.
    The original: T5X's fine-tuning on xP3 with batches of 512, inputs and targets of 1024 tokens,
    no packing, the loss averaged within each sequence; 30,000 steps, the best near 7,000.
    Command: `hf download bigscience/xP3 --repo-type dataset --include '*/merged_*.jsonl'
    --local-dir xP3`, then `python -m mtf.run recipes.mt0_xxl_xmtf`.
    Hardware: TPU v4-256.
    Expect: bigscience/mt0-xxl on the Hugging Face hub; its card lists the scores, which `mt0_eval`
    computes.

    Deviations:
      * xP3 is read from its published files and shuffled as a whole, so the rate of a dataset is
        proportional to its number of examples. Only `merged_LANGUAGE.jsonl` is read, like by the
        hub's loader; the other files of a language are the parts of this file, whose duplicates
        it lacks.
      * Inputs have no EOS, as in xP3's preprocessing (data/xp3/xp3_jsonl_to_meg.slurm of
        bigscience-workshop/bigscience), in `mt0_xxl`'s repository at that time and in the released
        evaluation. The code that read xP3 for mT5 was not published.
      * Learning rate 0.001, Adafactor and dropout 0.1 are those of T5X's finetune.gin; the paper
        and the release name none.
      * The model is split over 4 partitions, fully sharded, as in the repository of `mt0_xxl`. Its
        16 microbatches, which save memory and change no value, are 4 here: each of them gathers
        the parameters, which takes longer than the products (docs/plan.md).
      * Attention is recomputed in the backward pass, which saves memory and changes no value.
      * A checkpoint every 1,000 steps, all kept, so that the best can be chosen.

    Args:
      files: xP3's files of pairs of inputs and targets, each pair in only one of them.
      vocabulary: mT5's SentencePiece model.
      checkpoint: another initial checkpoint, such as a local copy.
      finetuning_steps: number of updates.
    """
    start = builders.checkpoint.start("mt5_xxl", checkpoint)
    model = builders.model.mt5("xxl", remat_policy="minimal")
    model.loss_normalizing_factor = "AVERAGE_PER_SEQUENCE"
    return fdl.Config(
        Train,
        model=model,
        data=fdl.Config(
            TextFilesConfig,
            files=files,
            vocabulary=builders.vocabulary.mt5(vocabulary),
            task_feature_lengths={"inputs": 1024, "targets": 1024},
            objective=fdl.Config(SpanCorruption),
            inputs_add_eos=False,
            pack=False,
        ),
        optimizer=fdl.Config(AdafactorConfig, builders.schedule.constant(1e-3)),
        train_steps=start.step + finetuning_steps,
        batch_size=512,
        trainer=fdl.Config(TrainerConfig, num_microbatches=4),
        partitioner=_fully_sharded("xxl"),
        checkpoint=builders.checkpoint.every(1000, restore=start),
    )


def mt0_eval(
    checkpoint: str | None = None,
    cache_dir: str | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    inputs_add_eos: bool = False,
) -> fdl.Config[Evaluate]:
    """Rank evaluation of an mT0 model on XNLI, XCOPA, XStoryCloze and XWinograd.

    Paper: Muennighoff et al. 2023, https://arxiv.org/abs/2211.01786, section 4.
    Source checkpoint: the one to evaluate, such as one of `mt0_xxl_xmtf`.
    The original command: t-zero's `run_eval.py` on bigscience/mt0-xxl, as in
    evaluation/results/tr13/tzeroeval/evaluate_mt0.slurm of bigscience-workshop/bigscience: five
    English prompts for each language (42 languages of the four datasets, 210 prompts), at most 512
    tokens, float32; validation data, for XWinograd its test data.
    Command: `hf download bigscience/mt0-xxl --local-dir mt0-xxl`, then
    `python -m mtf.run "recipes.mt0_eval(checkpoint='mt0-xxl')"`.
    A model of `mt0_small` … `mt0_xxl`, whose inputs have EOS:
    `python -m mtf.run "recipes.mt0_eval(checkpoint='RUN', inputs_add_eos=True)"`.
    All of promptsource's prompts for a dataset:
    `--set data.mixture_or_task_name=xnli_score_eval`.
    Datasets that cannot be found are left out; the terminal and the report name them.
    `--set data.allow_missing_tasks=False` refuses to evaluate without them.
    Hardware: one A100 GPU for each prompt. On one device: `--set partitioner.num_partitions=1`.
    Expect: the model card of bigscience/mt0-xxl lists the scores; bigscience/evaluation-results on
    the Hugging Face hub has those of every prompt.

    Deviations:
      * The prompts are those of promptsource 0.2.3 for XNLI, COPA, Story Cloze and Winogrande. The
        authors' branch of promptsource has the same text, except that "underscore refer to" has a
        space instead of a line break. Its translated prompts (xP3mt) are not available here.
      * English Story Cloze, which requires a form, and the English datasets of the same command
        (COPA, RTE, ANLI, CB, Winogrande) are in `t0_eval`'s mixture.
      * The model is split over 4 partitions, as in `mt0_xxl_xmtf`.

    Args:
      checkpoint: run directory, checkpoint or Hugging Face directory to evaluate; it must be set
        before the job runs.
      cache_dir: output of `python -m mtf.cache mt0_score_eval`; None renders and tokenizes the
        datasets during the evaluation.
      vocabulary: mT5's SentencePiece model.
      inputs_add_eos: whether inputs end with EOS, as in the training of `mt0_small` … `mt0_xxl`.
        Released models were trained and evaluated without it.
    """
    return fdl.Config(
        Evaluate,
        checkpoint=checkpoint,
        data=fdl.Config(
            TaskMixtureConfig,
            mixture_or_task_name="mt0_eos_score_eval" if inputs_add_eos else "mt0_score_eval",
            vocabulary=builders.vocabulary.mt5(vocabulary),
            task_feature_lengths={"inputs": 512, "targets": 512},
            cache_dir=cache_dir,
            pack=False,
            allow_missing_tasks=True,
        ),
        batch_size=32,
        partitioner=fdl.Config(PartitionerConfig, num_partitions=4),
    )


def mt5_lm_adapt(
    size: Literal["small", "base", "large", "xl", "xxl"] = "xxl",
    files: Mapping[str, str | tuple[str, ...]] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
    mixture: str | None = None,
    cache_dir: str | tuple[str, ...] | None = None,
) -> fdl.Config[Train]:
    """LM adaptation of mT5: 100,000 steps of prefix language modeling in all of mC4's languages.

    Paper: Lester et al. 2021, https://arxiv.org/abs/2104.08691, section 2.2, for T5; the page of
    mT0 for mT5. Language sampling: Xue et al. 2021, https://arxiv.org/abs/2010.11934, Table 6.
    Source checkpoint: T5X's mt5_SIZE at step 1,000,000.
    The original: 100,000 steps of 2,048 packed sequences of 512 tokens (104,857,600,000 tokens),
    each split at a random point into inputs and targets; targets of 256 tokens, languages sampled
    in proportion to their number of pages to the power of 0.3, no dropout. As in T5's prefix LM,
    the split point is uniform over the segment, and longer targets are truncated;
    `--set data.objective.truncate_targets=False` draws it where all targets fit.
    Command: `python -m mtf.run "recipes.mt5_lm_adapt(size='base')"`; with a corpus per language
    `python -m mtf.run "recipes.mt5_lm_adapt(size='base', files={'ro': 'ro.txt', 'en': 'en.txt'})"`.
    The repository also has a mixture of OSCAR 2019, in 166 languages, with inputs and targets of
    equal lengths: `python -m mtf.cache oscar_lm_adaptation --output CACHE --data-dir MIRROR`, then
    `python -m mtf.run "recipes.mt5_lm_adapt(mixture='oscar_lm_adaptation', cache_dir='CACHE')"
    --set data.task_feature_lengths.targets=512`. MIRROR has the files
    `oscar/unshuffled_deduplicated_LANGUAGE/train.parquet`; the hub has OSCAR 2019 only as a loading
    script, which `datasets` no longer runs.
    Hardware: the page names none.
    Expect: T5X's mt5_lm_adapted/SIZE at step 1,100,000 are the released models of this kind.

    Deviations:
      * mC4 is allenai/c4, streamed from the hub.
      * With `files`, the rate of a corpus is proportional to its number of documents to the power
        of 0.3: the paper's formula, not its table.
      * The learning rate continues that of pretraining (1/√step, so 0.001 to 0.00095), and the
        loss is the sum over targets; the page names neither.
      * XL and XXL are split over 4 partitions; layers are recomputed in the backward pass.

    Args:
      size: size of mT5.
      files: language → its text files, instead of mC4.
      vocabulary: mT5's SentencePiece model.
      checkpoint: another initial checkpoint, such as a local copy.
      mixture: mixture of documents instead of the stream: oscar_lm_adaptation, mc4_prefix_lm, ….
      cache_dir: token cache of the mixture; None tokenizes through SeqIO.
    """
    start = builders.checkpoint.start(f"mt5_{size}", checkpoint)
    text: dict[str, Any] = {
        "vocabulary": builders.vocabulary.mt5(vocabulary),
        "task_feature_lengths": {"inputs": 512, "targets": 256},
        "objective": fdl.Config(PrefixLM),
        "inputs_add_eos": False,
    }
    if mixture is not None:
        data = _mixture(mixture, cache_dir, vocabulary, {"inputs": 512, "targets": 256})
    elif files is not None:
        data = fdl.Config(TextCorporaConfig, files=dict(files), sampling_exponent=0.3, **text)
    else:
        data = fdl.Config(
            HubStreamConfig,
            dataset="allenai/c4",
            subsets=dict(builders.data.mc4_subsets()),
            window_documents=128,  # per stream, for each of 107 languages
            **text,
        )
    schedule = builders.schedule.rsqrt(1.0, warmup_steps=10_000)
    if not start.step:  # The schedule continues from the steps of the pretraining.
        schedule.step_offset = -builders.checkpoint.RELEASED_STEPS[f"mt5_{size}"]
    return fdl.Config(
        Train,
        model=_mt5(size, dropout_rate=0.0),
        data=data,
        optimizer=fdl.Config(AdafactorConfig, schedule),
        train_steps=start.step + 100_000,
        batch_size=2048,
        trainer=fdl.Config(TrainerConfig),
        partitioner=_partitioner(size),
        checkpoint=builders.checkpoint.every(1000, restore=start),
    )


def _train(
    size: str,
    cache_dir: str | tuple[str, ...] | None,
    vocabulary: str,
    checkpoint: str | None,
    train_steps: int | None,
) -> fdl.Config[Train]:
    start = builders.checkpoint.start(f"mt5_{size}", checkpoint)
    return fdl.Config(
        Train,
        model=_mt5(size, dropout_rate=0.1),
        data=_mixture(
            "mt5_d4_gpt_sglue_train", cache_dir, vocabulary, {"inputs": 256, "targets": 256}
        ),
        optimizer=fdl.Config(AdafactorConfig, builders.schedule.constant(1e-3)),
        train_steps=start.step + 125_000 if train_steps is None else train_steps,
        batch_size=128,
        trainer=fdl.Config(TrainerConfig, eval_period=None),
        partitioner=_fully_sharded(size),
        checkpoint=builders.checkpoint.every(5000, restore=start),
    )


def _mixture(
    name: str,
    cache_dir: str | tuple[str, ...] | None,
    vocabulary: str,
    task_feature_lengths: dict[str, int],
) -> fdl.Config[TaskMixtureConfig]:
    return fdl.Config(
        TaskMixtureConfig,
        mixture_or_task_name=name,
        vocabulary=builders.vocabulary.mt5(vocabulary),
        task_feature_lengths=task_feature_lengths,
        loader="seqio" if cache_dir is None else "cache",
        cache_dir=cache_dir,
    )


def _mt5(size: str, dropout_rate: float) -> fdl.Config:
    remat: Literal["full", "none"] = "full" if size in ("xl", "xxl") else "none"
    return builders.model.mt5(size, dropout_rate=dropout_rate, remat_policy=remat)


def _partitioner(size: str) -> fdl.Config[PartitionerConfig]:
    return fdl.Config(PartitionerConfig, num_partitions=4 if size in ("xl", "xxl") else 1)


def _fully_sharded(size: str) -> fdl.Config[PartitionerConfig]:
    """Returns what the repository's gin files have for XL and XXL; one partition for others."""
    config = _partitioner(size)
    if size in ("xl", "xxl"):
        config.logical_axis_rules = FULLY_SHARDED_AXIS_RULES
    return config
