"""The Romanian T5 and mT5: settings of the original, and where they stand here. See `parity.py`."""

from __future__ import annotations

from tests.recipes.rows import (
    MT5_VOCABULARY,
    REMAT,
    Row,
    adafactor,
    lengths,
    network,
    schedule,
    seeds,
    vocabulary,
)

RO_T5 = ("ro_t5_base", "ro_t5_large")
RO_MT5 = ("ro_mt5_base", "ro_mt5_large")
_RO = (*RO_T5, *RO_MT5)
_RO_TABLE = {
    # targets, steps, rate, partitions, period, keep
    "ro_t5_base": (256, 2_000_000, 1.0, 2, 10_000, 5),
    "ro_t5_large": (512, 2_000_000, 1.0, 4, 10_000, 5),
    "ro_mt5_base": (256, 2_000_000, 0.4, 2, 25_000, 3),
    "ro_mt5_large": (512, 1_500_000, 0.5, 2, 10_000, 3),
}

ROWS = [
    *(
        row
        for name, (targets, steps, rate, partitions, period, keep) in _RO_TABLE.items()
        for row in (
            *lengths((name,), "TASK_FEATURE_LENGTHS", 512, targets),
            Row((name,), "TRAIN_STEPS", steps, "train_steps"),
            *schedule((name,), "constant * rsqrt_decay", rate, 10_000),
            Row(
                (name,), "PjitPartitioner.num_partitions", partitions, "partitioner.num_partitions"
            ),
            Row((name,), "SaveCheckpointConfig.period", period, "checkpoint.save.period"),
            Row(
                (name,),
                "SaveCheckpointConfig.period in README.md",
                100_000,
                "checkpoint.save.period",
                period,
                deviation="the gin file's, which loses fewer steps when a machine is taken away",
            ),
            Row((name,), "SaveCheckpointConfig.keep", keep, "checkpoint.save.keep"),
        )
    ),
    Row(
        RO_T5,
        "RestoreCheckpointConfig.path",
        [],
        "checkpoint.restore",
        None,
        derived="both mean no checkpoint",
    ),
    *(
        Row(
            (f"ro_mt5_{size}",),
            "INITIAL_CHECKPOINT_PATH",
            f"gs://t5-data/pretrained_models/t5x/mt5_{size}/checkpoint_1000000",
            "checkpoint.restore.path",
        )
        for size in ("base", "large")
    ),
    Row(RO_MT5, "RestoreCheckpointConfig.mode", "specific", "checkpoint.restore.mode"),
    Row(
        _RO,
        "MIXTURE_OR_TASK_NAME",
        "rlm_span_corruption_stream",
        "data.objective",
        "SpanCorruption",
        derived="the objective of the task; its dataset is in the rows below",
    ),
    Row(_RO, "load_dataset path", "dumitrescustefan/rlm", "data.dataset"),
    Row(
        _RO,
        "streaming",
        True,
        "data",
        "HubStreamConfig",
        derived="the settings of a streamed dataset",
    ),
    Row(_RO, "splits[0]", "train", "data.split"),
    Row(_RO, "splits[1]", "validation", "data.eval_split"),
    Row(_RO, "text column", "text", "data.text_key"),
    Row(
        _RO,
        "output features",
        ("targets",),
        "data.inputs_add_eos",
        False,
        derived="SeqIO appends EOS only to the task's output features; `inputs` is not one",
    ),
    Row(_RO, "normalization of the text", None, "data.normalization"),
    Row(_RO, "BATCH_SIZE", 128, "batch_size"),
    Row(_RO, "DROPOUT_RATE", 0.0, "model.network.dropout_rate"),
    Row(_RO, "DatasetConfig.pack", True, "data.pack"),
    Row(_RO, "SHUFFLE_TRAIN_EXAMPLES", True, "data.shuffle"),
    Row(_RO, "eval_period", 1000, "trainer.eval_period"),
    Row(_RO, "eval_steps", 20, "trainer.eval_steps"),
    Row(_RO, "LOSS_NORMALIZING_FACTOR", None, "model.loss_normalizing_factor"),
    Row(_RO, "SaveCheckpointConfig.dtype", "float32", "checkpoint.save.dtype"),
    Row(_RO, "recomputation", None, "model.network.remat_policy", "minimal", deviation=REMAT),
    *adafactor(_RO),
    *vocabulary(RO_T5, "gs://myv4-bucket/sentencepiece/ro.model", 0),
    *vocabulary(RO_MT5, MT5_VOCABULARY, 0),
    *network({"ro_t5_base": "base", "ro_t5_large": "large"}, 64000),
    *network({"ro_mt5_base": "base", "ro_mt5_large": "large"}, 250112),
    *seeds(_RO),
]
