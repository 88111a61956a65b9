"""mT0 and LM adaptation: settings of the original, and where they stand here. See `parity.py`."""

from __future__ import annotations

import dataclasses

from mtf.partitioning import FULLY_SHARDED_AXIS_RULES
from tests.recipes.rows import (
    MT5_VOCABULARY,
    REMAT,
    T5X,
    Row,
    adafactor,
    lengths,
    network,
    schedule,
    seeds,
    vocabulary,
)

MT0_PAGE = ("mt0_small", "mt0_base", "mt0_large", "mt0_xl", "mt0_xxl")
_LM = ("mt5_lm_adapt",)
_XMTF = ("mt0_xxl_xmtf",)
_EVAL = ("mt0_eval",)
_ADDED = "added to the initial step 1,000,000"
_WIDE = "does not fit on the page's one partition; the repository has (4, 1, 1, 1)"

ROWS = [
    Row(MT0_PAGE, "MIXTURE_OR_TASK_NAME", "mt5_d4_gpt_sglue_train", "data.mixture_or_task_name"),
    Row(
        MT0_PAGE,
        "EOS on inputs (7d79f4a, the commit that the page's command uses)",
        True,
        "data.mixture_or_task_name",
        "mt5_d4_gpt_sglue_train",
        derived="its tasks have EOS on inputs; those of the repository's later mixtures do not",
    ),
    *lengths(MT0_PAGE, "TASK_FEATURE_LENGTHS", 256, 256),
    Row(MT0_PAGE, "TRAIN_STEPS", 1_125_000, "train_steps"),
    Row(
        MT0_PAGE,
        "USE_CACHED_TASKS",
        False,
        "data.loader",
        "seqio",
        derived="rendered and tokenized during training",
    ),
    *(
        Row(
            (f"mt0_{size}",),
            "INITIAL_CHECKPOINT_PATH",
            f"gs://t5-data/pretrained_models/mt5/{size}/model.ckpt-1000000",
            "checkpoint.restore.path",
            f"{T5X}/mt5_{size}/checkpoint_1000000",
            deviation="T5X's conversion of the same checkpoint"
            + ("" if size == "xxl" else "; the page shows XXL only"),
        )
        for size in ("small", "base", "large", "xl", "xxl")
    ),
    Row((*MT0_PAGE, *_XMTF), "RestoreCheckpointConfig.mode", "specific", "checkpoint.restore.mode"),
    Row(MT0_PAGE, "BATCH_SIZE (finetune.gin)", 128, "batch_size"),
    Row(MT0_PAGE, "DROPOUT_RATE (finetune.gin)", 0.1, "model.network.dropout_rate"),
    *schedule((*MT0_PAGE, *_XMTF), "constant", 0.001, 1000),
    *adafactor((*MT0_PAGE, *_XMTF, *_LM)),
    Row(MT0_PAGE, "DatasetConfig.pack", True, "data.pack"),
    Row(MT0_PAGE, "LOSS_NORMALIZING_FACTOR", None, "model.loss_normalizing_factor"),
    Row(MT0_PAGE, "SaveCheckpointConfig.period", 5000, "checkpoint.save.period"),
    Row(MT0_PAGE, "SaveCheckpointConfig.keep", None, "checkpoint.save.keep"),
    Row(
        MT0_PAGE,
        "EVAL_PERIOD",
        1000,
        "trainer.eval_period",
        None,
        deviation=(
            "like the scripts in multilingual-t0, does not evaluate 464 tasks during training"
        ),
    ),
    Row(
        MT0_PAGE,
        "Trainer.num_microbatches",
        None,
        "trainer.num_microbatches",
        1,
        derived="both mean the whole batch at once",
    ),
    Row(
        ("mt0_small", "mt0_base", "mt0_large"),
        "PjitPartitioner.num_partitions",
        1,
        "partitioner.num_partitions",
    ),
    Row(
        ("mt0_xl", "mt0_xxl"),
        "PjitPartitioner.num_partitions",
        1,
        "partitioner.num_partitions",
        4,
        deviation=_WIDE,
    ),
    Row(
        ("mt0_xl", "mt0_xxl", *_LM),
        "recomputation",
        None,
        "model.network.remat_policy",
        "full",
        deviation=REMAT,
    ),
    Row(_XMTF, "recomputation", None, "model.network.remat_policy", "minimal", deviation=REMAT),
    *vocabulary((*MT0_PAGE, *_XMTF, *_LM), MT5_VOCABULARY, 0),
    Row(
        ("mt0_xxl",),
        "T5Config.vocab_size of the page's gin file",
        32128,
        "model.network.vocab_size",
        250112,
        deviation="the page includes T5 1.1's gin file, which mT5's checkpoint does not fit",
    ),
    *network(
        {
            **{f"mt0_{size}": size for size in ("small", "base", "large", "xl", "xxl")},
            "mt0_xxl_xmtf": "xxl",
            "mt5_lm_adapt": "xxl",
        },
        250112,
    ),
    *seeds(MT0_PAGE),
    Row(
        _XMTF,
        "data",
        "bigscience/xP3",
        "data.files",
        "xP3/*/merged_*.jsonl",
        derived="the file of each language; the others are parts of it",
    ),
    Row(_XMTF, "EOS on inputs (xP3's preprocessing, the repository)", False, "data.inputs_add_eos"),
    Row(_XMTF, "batch", 512, "batch_size"),
    *lengths(_XMTF, "lengths", 1024, 1024),
    Row(_XMTF, "pack", False, "data.pack"),
    Row(_XMTF, "loss", "AVERAGE_PER_SEQUENCE", "model.loss_normalizing_factor"),
    Row(_XMTF, "steps", 30_000, "train_steps", 1_030_000, derived=_ADDED),
    Row(
        _XMTF,
        "start",
        "mt5/xxl at 1000000",
        "checkpoint.restore.path",
        f"{T5X}/mt5_xxl/checkpoint_1000000",
        derived="T5X's conversion",
    ),
    Row(_XMTF, "dropout (finetune.gin)", 0.1, "model.network.dropout_rate"),
    Row(
        _XMTF,
        "num_microbatches (the repository)",
        16,
        "trainer.num_microbatches",
        4,
        deviation="each microbatch gathers the parameters; the results are the same",
    ),
    Row(
        _XMTF,
        "model_parallel_submesh (the repository)",
        (4, 1, 1, 1),
        "partitioner.num_partitions",
        4,
        derived="the product of the submesh",
    ),
    Row(
        ("mt0_xl", "mt0_xxl", *_XMTF),
        "logical_axis_rules (the repository)",
        "tasks.fully_sharded_logical_axis_rules()",
        "partitioner.logical_axis_rules",
        FULLY_SHARDED_AXIS_RULES,
        derived="the same rules; the fsdp axis has size 1",
    ),
    Row(
        _XMTF,
        "SaveCheckpointConfig.period (the repository)",
        500,
        "checkpoint.save.period",
        1000,
        deviation="half as many checkpoints of 13B parameters; all are kept",
    ),
    Row(
        _EVAL,
        "datasets and prompts (evaluate_mt0.slurm)",
        "xnli, xcopa, Muennighoff/xstory_cloze, Muennighoff/xwinograd: 210 prompts",
        "data.mixture_or_task_name",
        "mt0_score_eval",
        derived="the same prompts, from promptsource 0.2.3",
    ),
    Row(
        _EVAL,
        "--split",
        "validation; XWinograd: test",
        "data.eval_split",
        "validation",
        derived="the validation split of XWinograd's tasks is its test data",
    ),
    Row(_EVAL, "--max_length", 512, "data.task_feature_lengths.inputs"),
    Row(_EVAL, "--max_length", 512, "data.task_feature_lengths.targets"),
    Row(_EVAL, "--dtype", "float32", "dtype"),
    Row(
        _EVAL,
        "--per_device_eval_batch_size",
        4,
        "batch_size",
        32,
        derived="the batch size changes scores only by rounding",
    ),
    *vocabulary(_EVAL, MT5_VOCABULARY, 0),
    Row(
        _EVAL,
        "device_map",
        "auto",
        "partitioner.num_partitions",
        4,
        derived="as in the fine-tuning of XXL",
    ),
    Row(_LM, "steps", 100_000, "train_steps", 1_100_000, derived=_ADDED),
    Row(_LM, "batch size", 2048, "batch_size"),
    Row(_LM, "length", 512, "data.task_feature_lengths.inputs"),
    Row(_LM, "target length", 256, "data.task_feature_lengths.targets"),
    Row(_LM, "packing", True, "data.pack"),
    Row(_LM, "objective", "PrefixLM", "data.objective"),
    Row(
        _LM,
        "split point (T5's prefix_lm)",
        "uniform, targets truncated",
        "data.objective.truncate_targets",
        True,
        derived="drawn from the whole segment; too long targets are truncated",
    ),
    Row(_LM, "EOS on inputs (the repository's tasks)", False, "data.inputs_add_eos"),
    Row(_LM, "dropout", None, "model.network.dropout_rate", 0.0, derived="both mean no dropout"),
    Row(
        _LM,
        "corpus",
        "mC4",
        "data.dataset",
        "allenai/c4",
        derived="the hub's copy, one configuration per language",
    ),
    # The mT5 paper's Table 6, in percent.
    Row(_LM, "sampling of English", 5.67, "data.subsets.en-multi"),
    Row(_LM, "sampling of Russian", 3.71, "data.subsets.ru"),
    Row(_LM, "sampling of Spanish", 3.09, "data.subsets.es"),
    Row(_LM, "sampling of German", 3.05, "data.subsets.de"),
    Row(
        _LM,
        "start",
        "mt5/xxl at 1000000",
        "checkpoint.restore.path",
        f"{T5X}/mt5_xxl/checkpoint_1000000",
        derived="T5X's conversion; `size` selects another size",
    ),
    *(
        dataclasses.replace(
            row,
            setting=f"{row.setting} (the page has none)",
            deviation="continues mT5's pretraining",
        )
        for row in schedule(_LM, "constant * rsqrt_decay", 1.0, 10_000)
    ),
    Row(
        _LM,
        "PjitPartitioner.num_partitions (the page has none)",
        None,
        "partitioner.num_partitions",
        4,
        deviation="XXL does not fit on one partition; small, base and large use 1",
    ),
]
