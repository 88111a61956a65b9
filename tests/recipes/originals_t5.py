"""T5X's pages: settings of the original, and where they stand here. See `parity.py`."""

from __future__ import annotations

from tests.recipes.rows import (
    REMAT,
    T5_VOCABULARY,
    Row,
    adafactor,
    lengths,
    network,
    schedule,
    seeds,
    vocabulary,
)

C4 = tuple(f"t5_1_1_{size}_c4" for size in ("small", "base", "large", "xl", "xxl"))
_FINETUNE = ("t5_1_1_finetune",)
_SMALL_AND_LARGE = tuple(name for name in C4 if name != "t5_1_1_base_c4")

ROWS = [
    Row(
        C4,
        "MIXTURE_OR_TASK_NAME",
        "c4_v220_span_corruption",
        "data.objective",
        "SpanCorruption",
        derived="the task's objective; with `cache_dir`, the recipe reads the cached task",
    ),
    Row(
        C4,
        "its dataset",
        "c4/en:2.2.0",
        "data.dataset",
        "allenai/c4",
        deviation="the hub's C4 is version 3.0.1",
    ),
    Row(
        C4,
        "USE_CACHED_TASKS",
        True,
        "data",
        "HubStreamConfig",
        deviation="streamed; with `cache_dir`, a token cache, and with `use_cached_tasks=True`, "
        "SeqIO's caches",
    ),
    *lengths(C4, "TASK_FEATURE_LENGTHS", 512, 114),
    Row(
        ("t5_1_1_small_c4",),
        "TRAIN_STEPS (the gin file)",
        10_000,
        "train_steps",
        100_000,
        deviation="the page's text says 100,000, and 10,000 is no more than the warm-up",
    ),
    Row(C4, "TRAIN_STEPS (the page's text, base's gin file)", 100_000, "train_steps"),
    Row(C4, "DROPOUT_RATE", 0.0, "model.network.dropout_rate"),
    Row(C4, "BATCH_SIZE", 256, "batch_size"),
    Row(C4, "DatasetConfig.pack", True, "data.pack"),
    *schedule(C4, "constant * rsqrt_decay", 1.0, 10_000),
    *adafactor((*C4, *_FINETUNE)),
    Row(C4, "LOSS_NORMALIZING_FACTOR", None, "model.loss_normalizing_factor"),
    Row(_SMALL_AND_LARGE, "eval_period", 1000, "trainer.eval_period"),
    Row(("t5_1_1_base_c4",), "eval_period", 2000, "trainer.eval_period"),
    Row((*C4, *_FINETUNE), "eval_steps", 20, "trainer.eval_steps"),
    Row(C4, "SaveCheckpointConfig.period", 1000, "checkpoint.save.period"),
    Row((*C4, *_FINETUNE), "SaveCheckpointConfig.keep", None, "checkpoint.save.keep"),
    Row(
        C4,
        "RestoreCheckpointConfig.path",
        [],
        "checkpoint.restore",
        None,
        derived="both mean no checkpoint",
    ),
    Row((*C4[:3], *_FINETUNE), "PjitPartitioner.num_partitions", 1, "partitioner.num_partitions"),
    Row(
        C4[3:],
        "PjitPartitioner.num_partitions",
        1,
        "partitioner.num_partitions",
        8,
        deviation="as in Mesh TensorFlow's gin files for these sizes; the parameters do not fit on "
        "one partition",
    ),
    Row(C4[3:], "recomputation", None, "model.network.remat_policy", "full", deviation=REMAT),
    *vocabulary((*C4, *_FINETUNE), T5_VOCABULARY, 100),
    *network(
        dict(zip((*C4, *_FINETUNE), ("small", "base", "large", "xl", "xxl", "small"), strict=True)),
        32128,
    ),
    *seeds((*C4, *_FINETUNE)),
    Row(
        _FINETUNE,
        "MIXTURE_OR_TASK_NAME",
        "wmt_t2t_ende_v003",
        "data.files",
        "train.tsv",
        deviation="the user provides the data; mtf does not have this task",
    ),
    *lengths(_FINETUNE, "TASK_FEATURE_LENGTHS", 256, 256),
    Row(_FINETUNE, "TRAIN_STEPS", 1_020_000, "train_steps"),
    Row(_FINETUNE, "BATCH_SIZE", 128, "batch_size"),
    Row(_FINETUNE, "DROPOUT_RATE (finetune.gin)", 0.1, "model.network.dropout_rate"),
    Row(
        _FINETUNE,
        "DROPOUT_RATE (the example in T5X's docs/usage/finetune.md)",
        0.0,
        "model.network.dropout_rate",
        0.1,
        deviation=(
            "the value in finetune.gin; T5 1.1's release notes recommend dropout for fine-tuning"
        ),
    ),
    Row(_FINETUNE, "LOSS_NORMALIZING_FACTOR", 233_472.0, "model.loss_normalizing_factor"),
    Row(
        _FINETUNE,
        "INITIAL_CHECKPOINT_PATH",
        "gs://t5-data/pretrained_models/t5x/t5_1_1_small/checkpoint_1000000",
        "checkpoint.restore.path",
    ),
    Row(_FINETUNE, "RestoreCheckpointConfig.mode", "specific", "checkpoint.restore.mode"),
    *schedule(_FINETUNE, "constant", 0.001, 1000),
    Row(_FINETUNE, "EVAL_PERIOD", 1000, "trainer.eval_period"),
    Row(_FINETUNE, "EVAL_PERIOD (infer_eval)", 1000, "evaluator.period"),
    Row(
        _FINETUNE,
        "infer_eval/DatasetConfig.task_feature_lengths",
        None,
        "data.task_feature_lengths.inputs",
        256,
        deviation="in decoding, inputs and predictions are limited to the training lengths",
    ),
    Row(_FINETUNE, "EVALUATOR_NUM_EXAMPLES", None, "evaluator.num_examples"),
    Row(
        _FINETUNE,
        "EncoderDecoderModel.predict_batch",
        "beam search, num_decodes=1",
        "evaluator.decoding",
        None,
        derived="None is T5X's beam search with one beam",
    ),
    Row(
        _FINETUNE,
        "metric_fns of wmt_t2t_ende_v003",
        ("bleu",),
        "evaluator.metrics",
        None,
        deviation="the metrics of the user's tasks; exact match for pairs of files",
    ),
    Row(_FINETUNE, "SaveCheckpointConfig.period", 5000, "checkpoint.save.period"),
    Row(_FINETUNE, "DatasetConfig.pack", True, "data.pack"),
]
