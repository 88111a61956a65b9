"""Trains mT0 by multitask prompted fine-tuning of mT5, and adapts mT5 to language modeling.

The main source is https://github.com/bigscience-workshop/multilingual-t0. Its gin files and scripts
("the repository") differ from its README.md ("the page"); their defaults are in T5X's
configs/runs/finetune.gin. The released models are described in https://arxiv.org/abs/2211.01786.
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
from recipes.family import member

_XP3 = "hf://datasets/bigscience/xP3/*/merged_*.jsonl"
_XP3MT = "hf://datasets/bigscience/xP3mt/*/merged_*.jsonl"
_P3 = "hf://datasets/Muennighoff/P3/p31t0_train.zip/**/*.jsonl"


def _mt0(
    size_and_files: tuple[str, str],
    files: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
) -> fdl.Config[Train]:
    """Trains mT0 MODEL as released, by fine-tuning mT5.

    | recipe       | parameters | data  | released at step | hardware   |
    |--------------|------------|-------|------------------|------------|
    | `mt0_small`  | 300M       | xP3   | 1,025,000        | TPU v4-64  |
    | `mt0_base`   | 580M       | xP3   | 1,025,000        | TPU v4-64  |
    | `mt0_large`  | 1.2B       | xP3   | 1,025,000        | TPU v4-64  |
    | `mt0_xl`     | 3.7B       | xP3   | 1,010,000        | unknown    |
    | `mt0_xxl`    | 13B        | xP3   | 1,007,000        | TPU v4-256 |
    | `mt0_xxl_mt` | 13B        | xP3mt | 1,007,000        | TPU v4-256 |
    | `mt0_xxl_p3` | 13B        | P3    | 1,007,000        | unknown    |

    xP3 has English prompts for examples in 46 languages; in xP3mt, prompts are also translated to
    20 languages; P3 is English. The steps and the hardware are those of the model cards and files
    of bigscience/mt0-* on the Hugging Face hub.

    Paper: Muennighoff et al. 2023, https://arxiv.org/abs/2211.01786, section 3.
    Source checkpoint: T5X's mt5_SIZE at step 1,000,000.
    The original: T5X's finetune.gin with a batch size of 512, inputs and targets of 1024 tokens,
    and no packing. The loss is averaged within each sequence. The authors trained for 30,000 steps
    and chose the best checkpoint (issue 6 of bigscience-workshop/xmtf).
    Command: `python -m mtf.run recipes.NAME`. If the data are not on this machine, it prints the
    command that downloads them. To end at the released step, add `--set train_steps=STEP`.
    Hardware: see the table.
    Expect: a model like its namesake on the Hugging Face hub. The model cards list the scores that
    `mt0_eval` computes.

    Deviations:
      * The data are the published files, and all examples are shuffled together, so the rate of a
        dataset is proportional to its number of examples. Like the hub's loader, the recipe reads
        only `merged_LANGUAGE.jsonl` of xP3 and xP3mt; the other files of a language are parts of
        this file, with duplicates. P3 is the authors' version, Muennighoff/P3. The names of xP3mt's
        files and of those in P3's archive are assumed.
      * Inputs do not end with EOS, as in xP3's preprocessing (data/xp3/xp3_jsonl_to_meg.slurm of
        bigscience-workshop/bigscience), in the later mixtures of `mt0_t0pp`'s repository and in the
        released evaluation. The code that read xP3 for mT5 was not published.
      * XL and XXL are split across 4 partitions and fully sharded, as in the repository of
        `mt0_t0pp`, which uses 16 microbatches. Microbatches save memory and do not change values.
        This recipe uses 4, because gathering the parameters for each microbatch takes longer than
        the matrix products (docs/plan.md).
      * Attention is recomputed in the backward pass, which saves memory and does not change values.
      * A checkpoint is saved every 1,000 steps, and all are kept so that the best can be chosen.

    Args:
      files: files with inputs and targets to use instead; each pair must occur in only one file.
      vocabulary: mT5's SentencePiece model.
      checkpoint: another initial checkpoint, such as a local copy.
    """
    size, published = size_and_files
    start = builders.checkpoint.start(f"mt5_{size}", checkpoint)
    model = builders.model.mt5(size, remat_policy="minimal")
    model.loss_normalizing_factor = "AVERAGE_PER_SEQUENCE"
    return fdl.Config(
        Train,
        model=model,
        data=fdl.Config(
            TextFilesConfig,
            files=files or published,
            vocabulary=builders.vocabulary.mt5(vocabulary),
            task_feature_lengths={"inputs": 1024, "targets": 1024},
            objective=fdl.Config(SpanCorruption),
            inputs_add_eos=False,
            pack=False,
        ),
        optimizer=fdl.Config(AdafactorConfig, builders.schedule.constant(1e-3)),
        train_steps=start.step + 30_000,
        batch_size=512,
        trainer=fdl.Config(TrainerConfig, num_microbatches=4),
        partitioner=_fully_sharded(size),
        checkpoint=builders.checkpoint.every(1000, restore=start),
    )


mt0_small = member(_mt0, ("small", _XP3), "mt0_small", "small (300M)")
mt0_base = member(_mt0, ("base", _XP3), "mt0_base", "base (580M)")
mt0_large = member(_mt0, ("large", _XP3), "mt0_large", "large (1.2B)")
mt0_xl = member(_mt0, ("xl", _XP3), "mt0_xl", "XL (3.7B)")
mt0_xxl = member(_mt0, ("xxl", _XP3), "mt0_xxl", "XXL (13B)")
mt0_xxl_mt = member(_mt0, ("xxl", _XP3MT), "mt0_xxl_mt", "XXL-MT (13B)")
mt0_xxl_p3 = member(_mt0, ("xxl", _P3), "mt0_xxl_p3", "XXL-P3 (13B)")


def mt0_t0pp(
    size: Literal["small", "base", "large", "xl", "xxl"] = "xxl",
    cache_dir: str | tuple[str, ...] | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    checkpoint: str | None = None,
) -> fdl.Config[Train]:
    """Trains mT5 on T0++'s prompts, as in multilingual-t0's README.md (the page).

    Paper: none for this setting; `mt0_xxl` is the published model.
    Source checkpoint: T5X's mt5_SIZE at step 1,000,000. The page describes XXL; the other sizes
    have the same settings.
    The original command: T5X's `train.py` with its XXL and finetune gin files. It trains on the
    mixture `mt5_d4_gpt_sglue_train`, which is not cached, to step 1,125,000 with inputs and targets
    of 256 tokens.
    Command: `python -m mtf.cache mt5_d4_gpt_sglue_train`, then
    `python -m mtf.run recipes.mt0_t0pp`. To render and tokenize the examples during training, as in
    the original, add `--set data.loader=seqio`.
    Hardware: not stated on the page. The repository splits XL and XXL across 4 TPU v4 chips.
    Expect: no score was published for this setting. To evaluate the model, run `mt0_eval` with
    `inputs_add_eos=True`.

    The mixture is that of the commit that the command uses (7d79f4a, 2021-11-07). Its inputs end
    with EOS. In the repository's later mixtures, such as `t0_plus_plus_train`, they do not.

    Deviations:
      * The initial checkpoint is T5X's conversion of the page's mt5/xxl/model.ckpt-1000000.
      * The network is that of mT5. The page includes the gin file of T5 1.1 XXL, in which the
        number of embedding rows, 32,128, is smaller than mT5's vocabulary.
      * XL and XXL are split across 4 partitions and fully sharded, as in the repository, and layers
        are recomputed in the backward pass. With one partition and the standard rules, as in
        finetune.gin, these models would not fit into memory.
      * The mixture is cached. Inputs that are truncated to 256 tokens also end with EOS, which they
        do not with SeqIO.
      * There is no evaluation during training, as in the repository. finetune.gin would evaluate
        20 batches of each of 464 tasks every 1,000 steps.
      * The seeds are fixed, whereas finetune.gin draws new seeds at every start.

    This recipe follows the page. The repository instead uses inputs of 1024 tokens
    (`--set data.task_feature_lengths.inputs=1024`), a batch size of 1024 with 16 microbatches
    (`--set batch_size=1024 trainer.num_microbatches=16`), 1,025,000 steps, and a checkpoint every
    500 steps. It also divides the loss by the number of target tokens in mT5's pretraining batch
    (`--set model.loss_normalizing_factor=234496`), which does not change Adafactor's updates.

    Args:
      size: size of mT5.
      cache_dir: output of `python -m mtf.cache`; None for its default place.
      vocabulary: mT5's SentencePiece model.
      checkpoint: another initial checkpoint, such as a local copy.
    """
    start = builders.checkpoint.start(f"mt5_{size}", checkpoint)
    return fdl.Config(
        Train,
        model=_mt5(size, dropout_rate=0.1),
        data=_mixture(
            "mt5_d4_gpt_sglue_train", cache_dir, vocabulary, {"inputs": 256, "targets": 256}
        ),
        optimizer=fdl.Config(AdafactorConfig, builders.schedule.constant(1e-3)),
        train_steps=start.step + 125_000,
        batch_size=128,
        trainer=fdl.Config(TrainerConfig, eval_period=None),
        partitioner=_fully_sharded(size),
        checkpoint=builders.checkpoint.every(5000, restore=start),
    )


def mt0_eval(
    checkpoint: str | None = None,
    cache_dir: str | None = None,
    vocabulary: str = builders.vocabulary.MT5_PATH,
    inputs_add_eos: bool = False,
) -> fdl.Config[Evaluate]:
    """Evaluates an mT0 model by rank on XNLI, XCOPA, XStoryCloze and XWinograd.

    Paper: Muennighoff et al. 2023, https://arxiv.org/abs/2211.01786, section 4.
    Source checkpoint: the checkpoint to evaluate, such as one of `mt0_xxl`.
    The original command: t-zero's `run_eval.py` on bigscience/mt0-xxl, as in
    evaluation/results/tr13/tzeroeval/evaluate_mt0.slurm of bigscience-workshop/bigscience. It uses
    five English prompts for each of the 42 languages of the four datasets (210 prompts in total),
    at most 512 tokens, float32, and the validation split or, for XWinograd, the test split.
    Command: `hf download bigscience/mt0-xxl --local-dir mt0-xxl`, then
    `python -m mtf.run "recipes.mt0_eval(checkpoint='mt0-xxl')"`. To evaluate a model trained by
    `mt0_t0pp`, in which inputs end with EOS, run
    `python -m mtf.run "recipes.mt0_eval(checkpoint='RUN', inputs_add_eos=True)"`.
    To use all of promptsource's prompts for a dataset, add
    `--set data.mixture_or_task_name=xnli_score_eval`. Missing datasets are skipped; the terminal
    and the report name them. To make them an error, add `--set data.allow_missing_tasks=False`.
    Hardware: one A100 GPU for each prompt. To use one device, add
    `--set partitioner.num_partitions=1`.
    Expect: the scores on the model card of bigscience/mt0-xxl. bigscience/evaluation-results on the
    Hugging Face hub contains the scores for every prompt.

    Deviations:
      * The prompts are those of promptsource 0.2.3 for XNLI, COPA, Story Cloze and Winogrande. The
        authors' branch of promptsource contains the same text, except for a space instead of a line
        break in "underscore refer to". Its translated prompts (xP3mt) are not available in mtf.
      * English Story Cloze, which must be requested with a form, and the English datasets of the
        original command (COPA, RTE, ANLI, CB, Winogrande) are in the mixture of `t0_eval` instead.
      * The model is split across 4 partitions, as in `mt0_xxl`.

    Args:
      checkpoint: run directory, checkpoint or Hugging Face directory to evaluate; it must be set
        before the job runs.
      cache_dir: output of `python -m mtf.cache mt0_score_eval`; None to render and tokenize the
        datasets during the evaluation.
      vocabulary: mT5's SentencePiece model.
      inputs_add_eos: whether inputs end with EOS, as in the training of `mt0_t0pp`. The released
        models were trained and evaluated without EOS.
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
    """Adapts mT5 with 100,000 steps of prefix language modeling in all of mC4's languages.

    Paper: Lester et al. 2021, https://arxiv.org/abs/2104.08691, section 2.2, for T5; the page of
    mT0 for mT5. The sampling of languages is that of Xue et al. 2021,
    https://arxiv.org/abs/2010.11934, Table 6.
    Source checkpoint: T5X's mt5_SIZE at step 1,000,000.
    The original: 100,000 steps with a batch of 2,048 packed sequences of 512 tokens each
    (104,857,600,000 tokens) and no dropout. Each sequence is split at a random point into inputs
    and targets of up to 256 tokens. Languages are sampled in proportion to their number of pages
    raised to the power of 0.3. As in T5's prefix LM, all split points of a segment are equally
    likely, and longer targets are truncated. To draw only split points for which the targets fit,
    add `--set data.objective.truncate_targets=False`.
    Command: `python -m mtf.run "recipes.mt5_lm_adapt(size='base')"`. To use a corpus for each
    language, run
    `python -m mtf.run "recipes.mt5_lm_adapt(size='base', files={'ro': 'ro.txt', 'en': 'en.txt'})"`.
    The repository also defines a mixture of OSCAR 2019, with 166 languages, in which inputs and
    targets have equal lengths. To use it, run
    `python -m mtf.cache oscar_lm_adaptation --data-dir MIRROR`, then
    `python -m mtf.run "recipes.mt5_lm_adapt(mixture='oscar_lm_adaptation')"
    --set data.task_feature_lengths.targets=512`. MIRROR must contain the files
    `oscar/unshuffled_deduplicated_LANGUAGE/train.parquet`, because the hub provides OSCAR 2019 only
    as a loading script, which `datasets` no longer runs.
    Hardware: not stated on the page.
    Expect: models like the released mt5_lm_adapted/SIZE of T5X at step 1,100,000.

    Deviations:
      * mC4 is streamed from allenai/c4 on the hub.
      * With `files`, the rate of a corpus is proportional to its number of documents raised to the
        power of 0.3, which is the paper's formula rather than its table.
      * The learning rate continues that of pretraining, 1/√step, and thus falls from 0.001 to
        0.00095. The loss is the sum over the targets. The page does not mention either setting.
      * XL and XXL are split across 4 partitions, and layers are recomputed in the backward pass.

    Args:
      size: size of mT5.
      files: dict mapping each language to its text files, which are used instead of mC4.
      vocabulary: mT5's SentencePiece model.
      checkpoint: another initial checkpoint, such as a local copy.
      mixture: mixture of documents to use instead of the stream, such as oscar_lm_adaptation or
        mc4_prefix_lm.
      cache_dir: token cache of the mixture; None for its default place.
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
            window_documents=128,  # There is a window for each of the 107 languages.
            **text,
        )
    schedule = builders.schedule.rsqrt(1.0, warmup_steps=10_000)
    if not start.step:  # The schedule continues that of pretraining.
        schedule.step_offset = -builders.checkpoint.RELEASED_STEPS[f"mt5_{size}"]
    return fdl.Config(
        Train,
        model=_mt5(size, dropout_rate=0.0),
        data=data,
        optimizer=fdl.Config(AdafactorConfig, schedule),
        train_steps=start.step + 100_000,
        batch_size=2048,
        trainer=fdl.Config(TrainerConfig),
        partitioner=fdl.Config(PartitionerConfig, num_partitions=4 if size in ("xl", "xxl") else 1),
        checkpoint=builders.checkpoint.every(1000, restore=start),
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
        cache_dir=cache_dir,
    )


def _mt5(size: str, dropout_rate: float) -> fdl.Config:
    remat: Literal["full", "none"] = "full" if size in ("xl", "xxl") else "none"
    return builders.model.mt5(size, dropout_rate=dropout_rate, remat_policy=remat)


def _fully_sharded(size: str) -> fdl.Config[PartitionerConfig]:
    """Returns the repository's partitioning for XL and XXL, and one partition for other sizes."""
    if size not in ("xl", "xxl"):
        return fdl.Config(PartitionerConfig, num_partitions=1)
    return fdl.Config(
        PartitionerConfig, num_partitions=4, logical_axis_rules=FULLY_SHARDED_AXIS_RULES
    )
