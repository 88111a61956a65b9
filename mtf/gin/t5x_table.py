"""What the gin bindings of T5X become (T5X at cc342d4).

Sources: the signatures in t5x/{train,eval,infer,utils,models,partitioning,adafactor}.py, and the
bindings in t5x/configs/runs/*.gin and t5x/examples/.
"""

from __future__ import annotations

from typing import Any

from mtf.gin.rows import NotTranslatedError, Row, Section, as_tuple, default_of, one_of

# Canonical name → the modules that have the configurable.
T5X_MODULES: dict[str, tuple[str, ...]] = {
    "train_script.train": ("__main__", "t5x.train"),
    "eval_script.evaluate": ("__main__", "t5x.eval"),
    "infer_script.infer": ("__main__", "t5x.infer"),
    **dict.fromkeys(
        (
            "utils.DatasetConfig",
            "utils.CheckpointConfig",
            "utils.RestoreCheckpointConfig",
            "utils.SaveCheckpointConfig",
            "utils.create_learning_rate_scheduler",
            "utils.get_dataset",
            "utils.get_training_eval_datasets",
            "utils.verify_matching_vocabs",
            "utils.TrainStateInitializer",
        ),
        ("t5x.utils",),
    ),
    **dict.fromkeys(
        (
            "partitioning.PjitPartitioner",
            "partitioning.ModelBasedPjitPartitioner",
            "partitioning.standard_logical_axis_rules",
        ),
        ("t5x.partitioning",),
    ),
    "trainer.Trainer": ("t5x.trainer",),
    "trainer.TerminateOnNanAction": ("t5x.trainer",),
    "gin_utils.summarize_gin_config": ("t5x.gin_utils",),
    "checkpoints.Checkpointer": ("t5x.checkpoints",),
    "checkpoints.SaveBestCheckpointer": ("t5x.checkpoints",),
    "models.EncoderDecoderModel": ("t5x.models",),
    "models.EncoderDecoderModel.predict_batch_with_aux": ("t5x.models",),
    "models.EncoderDecoderModel.loss_fn": ("t5x.models",),
    "models.DecoderOnlyModel": ("t5x.models",),
    "decoding.beam_search": ("t5x.decoding",),
    "decoding.temperature_sample": ("t5x.decoding",),
    "network.Transformer": ("t5x.examples.t5.network", "t5x.examples.scalable_t5.network"),
    "network.T5Config": ("t5x.examples.t5.network", "t5x.examples.scalable_t5.network"),
    "adafactor.Adafactor": ("t5x.adafactor",),
    "adafactor.standard_logical_factor_rules": ("t5x.adafactor",),
    "optimizers.chain": ("t5x.optimizers",),
    "optax.clip": ("optax",),
    "optax.clip_by_global_norm": ("optax",),
    "optax.adamw": ("optax",),
    "optax.warmup_cosine_decay_schedule": ("optax",),
    "seqio.SentencePieceVocabulary": ("seqio",),
    "seqio.ByteVocabulary": ("seqio",),
    "seqio.Evaluator": ("seqio",),
    "seqio.PyLoggingLogger": ("seqio",),
    "seqio.TensorBoardLogger": ("seqio",),
    "seqio.JSONLogger": ("seqio",),
}

FULLY_SHARDED = "FULLY_SHARDED_AXIS_RULES"
ONE_BATCH_SIZE = "mtf has one batch size for training and evaluation"
NO_SEED = "the original draws a new seed at every start; mtf has a fixed one and resumes exactly"
_PARTITIONERS = dict.fromkeys(
    ("partitioning.PjitPartitioner", "partitioning.ModelBasedPjitPartitioner"), "partitioner"
)
_EVALUATED_AS_TRAINED = "mtf evaluates held-out data of the training mixture, prepared as for it"


def _seed(value: Any) -> Any:
    if value is None:
        raise NotTranslatedError(NO_SEED)
    return value


def _axis_rules(value: Any) -> Any:
    """Returns the rules of a list, or the name of those that a function returns."""
    if value is None:
        raise NotTranslatedError("the standard rules")
    if isinstance(value, list | tuple):
        return as_tuple(value)
    if str(value).rstrip("()").endswith("fully_sharded_logical_axis_rules"):
        return FULLY_SHARDED
    raise NotTranslatedError(f"{value} is a function that mtf does not know")


def _restored(value: Any) -> Any:
    if isinstance(value, list | tuple):
        if len(value) > 1:
            raise NotTranslatedError("mtf restores from one path")
        return value[0] if value else None
    return value or None


def _data_rows(*own: Row) -> tuple[Row, ...]:
    """Returns `own` rows of a DatasetConfig, and those that all roles share."""
    same = [
        Row("use_custom_packing_ops", fixed=(False,), note="mtf has its own packing"),
        Row("use_memory_cache", anything=True, note="changes no result"),
        Row("trim_output_features", fixed=(True,), note="mtf always trims features"),
        Row("runtime_preprocessors", fixed=(None,), note="mtf reads SeqIO's tasks, not AirIO's"),
        Row("num_prefetch_threads", anything=True, note="changes no result"),
        Row("num_workers", anything=True, note="changes no result"),
    ]
    return (*own, *same)


_TRAIN_ROWS = (
    Row("model", parts={"models.EncoderDecoderModel": "model"}),
    Row("model_dir", "model_dir", "not bound: `runs/NAME-TIME`", optional=True),
    Row("train_dataset_cfg", parts={"utils.DatasetConfig": "train_data"}),
    Row(
        "train_eval_dataset_cfg",
        "data.eval_split",
        "None: no evaluation",
        parts={"utils.DatasetConfig": "eval_data"},
    ),
    Row(
        "infer_eval_dataset_cfg",
        "evaluator",
        "None: no evaluation by decoding",
        parts={"utils.DatasetConfig": "infer_eval_data"},
    ),
    Row("checkpoint_cfg", parts={"utils.CheckpointConfig": "checkpoint"}),
    Row("partitioner", parts=_PARTITIONERS),
    Row("trainer_cls", parts={"trainer.Trainer": "trainer"}),
    Row("total_steps", "train_steps"),
    Row("eval_steps", "trainer.eval_steps", "also 0: all batches", convert=default_of(None)),
    Row(
        "eval_period",
        "trainer.eval_period",
        "0: no evaluation; also `evaluator.period`",
        convert=default_of(None),
    ),
    Row(
        "relative_steps",
        "relative_steps",
        "counted from the step of the initial checkpoint",
        fixed=(None,),
    ),
    Row(
        "stats_period",
        "trainer.stats_period",
        "not bound: 100; in T5X, `eval_period`",
        fixed=(None,),
    ),
    Row("random_seed", "random_seed", NO_SEED, convert=_seed),
    Row("use_hardware_rng", fixed=(False,), note="JAX's default generator draws dropout masks"),
    Row(
        "summarize_config_fn",
        anything=True,
        note="the run directory has config.json, config.py and config.txt",
    ),
    Row("inference_evaluator_cls", parts={"seqio.Evaluator": "evaluator"}),
    Row(
        "get_dataset_fn", fixed=("@utils.get_dataset",), note="see `data.module` and `data.loader`"
    ),
    Row("concurrent_metrics", anything=True, note="changes no result"),
    Row(
        "actions",
        parts={"trainer.TerminateOnNanAction": "nan_action"},
        note="mtf has no other action; a loss that is not finite always ends a run",
    ),
    Row(
        "train_eval_get_dataset_fn",
        fixed=("@utils.get_training_eval_datasets",),
        note=_EVALUATED_AS_TRAINED,
    ),
    Row(
        "run_eval_before_training",
        fixed=(False,),
        note="mtf evaluates every `trainer.eval_period` steps and at the end",
    ),
    Row("train_state_initializer_cls", fixed=("@utils.TrainStateInitializer",), note="built in"),
    Row("use_orbax", anything=True, note="mtf reads both layouts and writes Orbax's"),
    Row(
        "verify_matching_vocabs_fn", anything=True, note="`data.vocabulary` is the only vocabulary"
    ),
    Row("gc_period", anything=True, note="changes no result"),
)

_DATA = "data.mixture_or_task_name"
_TRAIN_DATA_ROWS = _data_rows(
    Row("mixture_or_task_name", _DATA),
    Row("task_feature_lengths", "data.task_feature_lengths"),
    Row("split", "data.split"),
    Row("batch_size", "batch_size"),
    Row("shuffle", "data.shuffle"),
    Row("seed", "data.seed", NO_SEED, convert=_seed),
    Row(
        "use_cached",
        "data.use_cached",
        "reads SeqIO's caches in `--seqio_additional_cache_dirs`; without that flag, mtf renders "
        "and tokenizes during training",
        default=False,
    ),
    Row("pack", "data.pack", default=False),
    Row("module", "data.module", "with the modules that the gin files import"),
)
_EVAL_DATA_ROWS = _data_rows(
    Row("mixture_or_task_name", equals=_DATA, note=_EVALUATED_AS_TRAINED),
    Row("task_feature_lengths", equals="data.task_feature_lengths", note=_EVALUATED_AS_TRAINED),
    Row("split", "data.eval_split"),
    Row("batch_size", equals="batch_size", note=ONE_BATCH_SIZE),
    Row("shuffle", fixed=(False,), note="mtf evaluates the same examples every time"),
    Row("seed", anything=True, note="mtf evaluates the same examples every time"),
    Row("use_cached", equals="data.use_cached", note=_EVALUATED_AS_TRAINED),
    Row("pack", equals="data.pack", note=_EVALUATED_AS_TRAINED),
    Row("module", equals="data.module", note=_EVALUATED_AS_TRAINED),
)
_INFER_EVAL_ROWS = _data_rows(
    Row("mixture_or_task_name", equals=_DATA, note=_EVALUATED_AS_TRAINED),
    Row(
        "task_feature_lengths",
        equals="data.task_feature_lengths",
        fixed=(None,),
        note="mtf truncates to the lengths of training",
    ),
    Row("split", equals="data.eval_split", note="mtf has one split for both evaluations"),
    Row("batch_size", equals="batch_size", note=ONE_BATCH_SIZE),
    Row("shuffle", fixed=(False,), note="mtf decodes the same examples every time"),
    Row("seed", anything=True, note="mtf decodes the same examples every time"),
    Row("use_cached", equals="data.use_cached", note=_EVALUATED_AS_TRAINED),
    Row("pack", fixed=(False,), note="mtf never packs inputs to decode"),
    Row("module", equals="data.module", note=_EVALUATED_AS_TRAINED),
)
_JOB_DATA_ROWS = _data_rows(
    Row("mixture_or_task_name", _DATA),
    Row(
        "task_feature_lengths",
        "data.task_feature_lengths",
        "None, the longest example: mtf takes 1024 and 256 tokens",
    ),
    Row("split", "data.eval_split"),
    Row("batch_size", "batch_size"),
    Row("shuffle", anything=True, note="the order does not change the result"),
    Row("seed", anything=True, note="the order does not change the result"),
    Row("use_cached", fixed=(False,), note="set `data.cache_dir` to a token cache"),
    Row("pack", fixed=(False,), note="mtf never packs inputs to decode"),
    Row("module", "data.module", "with the modules that the gin files import"),
)

_NOT_IN_JOB = "not among mtf's settings of this job"
_EVALUATE_ROWS = (
    Row("model", parts={"models.EncoderDecoderModel": "decoding_model"}),
    Row("dataset_cfg", parts={"utils.DatasetConfig": "evaluate_data"}),
    Row("restore_checkpoint_cfg", parts={"utils.RestoreCheckpointConfig": "job_restore"}),
    Row("partitioner", parts=_PARTITIONERS),
    Row("output_dir", "output_dir", "not bound: `runs/evaluate-TIME`", optional=True),
    Row("inference_evaluator_cls", parts={"seqio.Evaluator": "job_evaluator"}),
    Row("training_evaluator_cls", fixed=(None,), note="mtf's `Evaluate` computes no training loss"),
    Row("summarize_config_fn", anything=True, note="the output has its config"),
    Row("train_state_initializer_cls", fixed=("@utils.TrainStateInitializer",), note="built in"),
    Row("train_eval_get_dataset_fn", anything=True, note="used only for a training loss"),
    Row("fallback_init_rng", fixed=(None,), note="mtf never evaluates initial parameters"),
    Row("use_orbax", anything=True, note="mtf reads both layouts"),
)
_INFER_ROWS = (
    Row("mode", "mode"),
    Row("model", parts={"models.EncoderDecoderModel": "decoding_model"}),
    Row("dataset_cfg", parts={"utils.DatasetConfig": "infer_data"}),
    Row("restore_checkpoint_cfg", parts={"utils.RestoreCheckpointConfig": "job_restore"}),
    Row("partitioner", parts=_PARTITIONERS),
    Row("output_dir", "output_dir", "not bound: `RUN/inference`", optional=True),
    Row("checkpoint_period", "checkpoint_period"),
    Row("shard_id", "shard_id"),
    Row("num_shards", "num_shards"),
    Row("merge_chunked_results", anything=True, note="the last shard joins the results"),
    Row("write_fn", note="mtf writes T5X's JSON lines"),
    Row("merge_fn", note="mtf joins T5X's JSON lines"),
    Row("checkpoint_ds_iter", anything=True, note="a killed job resumes"),
    Row("train_state_initializer_cls", fixed=("@utils.TrainStateInitializer",), note="built in"),
    Row("fallback_init_rng", fixed=(None,), note="mtf never decodes with initial parameters"),
    Row("summarize_config_fn", anything=True, note="the output has its settings"),
    Row("verify_matching_vocabs_fn", anything=True, note="the checkpoint has one vocabulary"),
    Row("output_vocab_feature_name", fixed=("targets",), note="mtf decodes targets"),
    Row("file_extension", fixed=("jsonl",), note="mtf writes .jsonl"),
    Row("keep_aux_as_numpy", fixed=(False,), note="mtf writes JSON"),
    Row("use_orbax", anything=True, note="mtf reads both layouts"),
)

_LOGGERS = dict.fromkeys(("seqio.PyLoggingLogger", "seqio.TensorBoardLogger"), "logger") | {
    "seqio.JSONLogger": "json_logger"
}
_LOGGER_CLS = Row("logger_cls", parts=_LOGGERS, note="mtf always writes text, TensorBoard and JSON")
_MEMORY_CACHE = Row("use_memory_cache", anything=True, note="changes no result")

_CHECKPOINT_ROWS = (
    Row(
        "restore",
        "checkpoint.restore",
        "None: from scratch",
        parts={"utils.RestoreCheckpointConfig": "restore"},
    ),
    Row(
        "save",
        "checkpoint.save",
        "None: mtf saves the last step",
        parts={"utils.SaveCheckpointConfig": "save"},
    ),
)
_SHARED_RESTORE_ROWS = (
    Row("assignment_map", "checkpoint.restore.assignment_map", convert=as_tuple),
    Row("strict", fixed=(True,), note="mtf restores the whole optimizer state"),
    Row("fallback_to_scratch", "checkpoint.restore.fallback_to_scratch"),
    Row("checkpointer_cls", fixed=("@checkpoints.Checkpointer",), note="mtf knows the layout"),
    Row("state_transformation_fns", fixed=([], ()), note="see `assignment_map`"),
    Row("checkpoint_manager_cls", anything=True, note="mtf has its own"),
)
_RESTORE_ROWS = (
    Row(
        "path",
        "checkpoint.restore.path",
        "[]: from scratch; a Mesh TensorFlow checkpoint of Google: T5X's conversion of it",
        convert=_restored,
    ),
    Row("mode", "checkpoint.restore.mode"),
    Row("dtype", fixed=(None, "float32"), note="mtf trains in float32 parameters"),
    *_SHARED_RESTORE_ROWS,
)
_JOB_RESTORE_ROWS = (
    Row("path", "checkpoint", convert=_restored),
    Row(
        "mode",
        "checkpoint_steps",
        "`all`: all checkpoints of the run",
        convert=lambda mode: mode if mode == "all" else None,
    ),
    Row(
        "dtype",
        "dtype",
        "of parameters and activations; not bound: float32",
        convert=lambda dtype: dtype or "float32",
    ),
    *(
        Row(row.parameter, fixed=row.fixed or (None, [], False), note=_NOT_IN_JOB)
        for row in _SHARED_RESTORE_ROWS
    ),
)
_SAVE_ROWS = (
    Row("period", "checkpoint.save.period", default=None),
    Row("dtype", "checkpoint.save.dtype", convert=lambda dtype: dtype or "float32"),
    Row("keep", "checkpoint.save.keep"),
    Row(
        "checkpoint_steps",
        "checkpoint.save.checkpoint_steps",
        convert=lambda steps: tuple(steps or ()),
    ),
    Row("save_dataset", anything=True, note="mtf always saves the position in the data"),
    Row("keep_dataset_checkpoints", anything=True, note="the position is in every checkpoint"),
    Row(
        "checkpointer_cls",
        parts={"checkpoints.Checkpointer": "logger", "checkpoints.SaveBestCheckpointer": "best"},
    ),
    Row("state_transformation_fns", fixed=([], ()), note="mtf saves the state as it is"),
    Row("checkpoint_manager_cls", anything=True, note="mtf has its own"),
)
_BEST_ROWS = (
    Row("metric_name_to_monitor", "checkpoint.save.metric_name_to_monitor"),
    Row("metric_mode", "checkpoint.save.metric_mode", default="max"),
    Row(
        "keep_checkpoints_without_metrics",
        "checkpoint.save.keep_checkpoints_without_metrics",
        default=True,
    ),
    Row("force_keep_period", fixed=(None,), note="see `checkpoint.save.checkpoint_steps`"),
)

_PARTITIONER_ROWS = (
    Row("num_partitions", "partitioner.num_partitions"),
    Row("model_parallel_submesh", "partitioner.model_parallel_submesh", convert=as_tuple),
    Row(
        "logical_axis_rules",
        "partitioner.logical_axis_rules",
        "a list, or a function named fully_sharded_logical_axis_rules",
        convert=_axis_rules,
        parts={"partitioning.standard_logical_axis_rules": "axis_rules"},
    ),
    Row("params_on_devices", fixed=(True,), note="mtf keeps parameters on devices"),
    Row("backend", fixed=(None,), note="see JAX_PLATFORMS"),
    Row("use_cpu_pjit", anything=True, note="mtf uses the same mesh on all platforms"),
    Row("ici_mesh_shape", fixed=(None,), note="see `model_parallel_submesh`"),
    Row("dcn_mesh_shape", fixed=(None,), note="see `model_parallel_submesh`"),
)
_DIMS = "1 and 1: the standard rules; 2 and 2: FULLY_SHARDED_AXIS_RULES"
_AXIS_RULES_ROWS = (
    Row("activation_partitioning_dims", "axis_rules.activations", _DIMS, convert=one_of(1, 2)),
    Row("parameter_partitioning_dims", "axis_rules.parameters", _DIMS, convert=one_of(1, 2)),
    Row("additional_rules", fixed=(None, [], ()), note="set `partitioner.logical_axis_rules`"),
)
_TRAINER_ROWS = (
    Row(
        "num_microbatches",
        "trainer.num_microbatches",
        "None and 0: 1",
        convert=default_of(1),
    ),
    Row(
        "learning_rate_fn",
        parts={"utils.create_learning_rate_scheduler": "schedule"},
    ),
    Row("weight_metrics_computer", fixed=(None,), note="mtf logs no norms of single weights"),
)
_RATE = "optimizer.learning_rate."
_SCHEDULE_ROWS = tuple(
    Row(name, _RATE + name)
    for name in (
        *("factors", "base_learning_rate", "warmup_steps", "decay_factor", "steps_per_decay"),
        *("steps_per_cycle", "step_offset", "min_learning_rate"),
    )
)

_VOCABULARIES = {"seqio.SentencePieceVocabulary": "pieces", "seqio.ByteVocabulary": "bytes"}
_OPTIMIZERS = {"adafactor.Adafactor": "adafactor", "optimizers.chain": "chain"}
_DECODERS = {
    "decoding.beam_search": "beam_search",
    "decoding.temperature_sample": "temperature_sample",
}
_MODEL_ROWS = (
    Row("module", parts={"network.Transformer": "transformer"}),
    Row("input_vocabulary", parts=_VOCABULARIES),
    Row("output_vocabulary", parts=_VOCABULARIES, note="mtf has one vocabulary"),
    Row("optimizer_def", parts=_OPTIMIZERS),
    Row("decode_fn", parts=_DECODERS),
    Row("z_loss", "model.z_loss", default=0.0),
    Row("label_smoothing", "model.label_smoothing"),
    Row("loss_normalizing_factor", "model.loss_normalizing_factor"),
    Row("feature_converter_cls", fixed=(None,), note="mtf has only encoder-decoder models"),
    Row("default_decoder_params", fixed=(None,), note="set `evaluator.decoding`"),
)
_FROM_CHECKPOINT = "read from the checkpoint"
_DECODING_MODEL_ROWS = tuple(
    row
    if row.parameter in ("decode_fn", "input_vocabulary", "output_vocabulary")
    else Row(row.parameter, anything=True, note=_FROM_CHECKPOINT)
    for row in _MODEL_ROWS
)
# In T5X of 2021, these were parameters of the loss.
_LOSS_ROWS = tuple(
    Row(name, f"model.{name}", "T5X before 2022")
    for name in ("z_loss", "label_smoothing", "loss_normalizing_factor")
)
_PREDICT_ROWS = (
    Row("num_decodes", "decoding.num_beams"),
    Row("return_all_decodes", fixed=(False, None), note="set `decoding.num_return`"),
    Row("decoder_params", fixed=(None,), note="set `decoding`"),
    Row("prompt_with_targets", fixed=(False,), note="mtf decodes from the first token"),
)
_BEAM_ROWS = (
    Row("alpha", "decoding.length_penalty"),
    Row("num_decodes", anything=True, note="see `predict_batch_with_aux.num_decodes`"),
    Row("max_decode_len", "decoding.max_length", fixed=(None,)),
    Row("min_log_prob", fixed=(-1.0e7,), note="T5X's value is built in"),
)
_SAMPLE_ROWS = (
    Row("temperature", "decoding.temperature"),
    Row("topk", "decoding.top_k", "1: greedy", default=1),
    Row("topp", "decoding.top_p", "0: 1", convert=default_of(1.0)),
    Row("max_decode_steps", "decoding.max_length", fixed=(None,)),
    Row("rescale_log_probs", anything=True, note="mtf returns the log-probabilities of the model"),
)
_ADAFACTOR_ROWS = (
    Row("learning_rate", fixed=(None,), note="the schedule is the trainer's"),
    *(
        Row(name, f"optimizer.{name}")
        for name in (
            *("factored", "beta1", "decay_rate", "step_offset", "clipping_threshold"),
            *("weight_decay_rate", "min_dim_size_to_factor", "epsilon1", "epsilon2"),
            *("weight_decay_rate_lr_exponent", "global_norm_clip_threshold"),
        )
    ),
    Row(
        "multiply_by_parameter_scale",
        "optimizer.multiply_by_parameter_scale",
        convert=one_of(True, False),
    ),
    Row("dtype_momentum", fixed=("float32",), note="mtf keeps moments in float32"),
    Row("factor_map", fixed=(None,), note="see `optimizer.logical_factor_rules`"),
    Row(
        "logical_factor_rules",
        note="mtf has T5X's standard rules by default",
        fixed=(None,),
        parts={"adafactor.standard_logical_factor_rules": "factor_rules"},
    ),
    Row("max_parameter_scale", fixed=(None,), note="mtf does not bound the scale"),
    Row("skip_nan_updates", "trainer.skip_nonfinite_updates", "also skips infinite ones"),
)
_NETWORK_ROWS = (
    *(
        Row(name, f"model.network.{name}", default=default)
        for name, default in (
            ("vocab_size", None),
            ("emb_dim", 512),
            ("num_heads", 8),
            ("head_dim", 64),
            ("num_encoder_layers", 6),
            ("num_decoder_layers", 6),
            ("mlp_dim", 2048),
        )
    ),
    Row("mlp_activations", "model.network.mlp_activations", default=("relu",), convert=as_tuple),
    Row("dropout_rate", "model.network.dropout_rate"),
    Row("logits_via_embedding", "model.network.logits_via_embedding"),
    Row("dtype", "model.network.dtype", default="float32"),
    Row("scale_attn_logits", fixed=(False,), note="T5's attention is not scaled", refused=True),
    Row("float32_attention_logits", anything=True, note="mtf's attention softmax is float32"),
    Row(
        "scan_layers",
        "model.network.scan_layers",
        "scanned layers share one relative position bias, as unrolled ones do; T5X's do not",
    ),
    Row("remat_policy", "model.network.remat_policy"),
    Row("param_scan_axis", anything=True, note="checkpoints have unrolled layers"),
)
_ADAMW_ROWS = (
    Row(
        "learning_rate",
        "adamw.base_learning_rate",
        "a number, or optax.warmup_cosine_decay_schedule",
        parts={"optax.warmup_cosine_decay_schedule": "warmup_cosine"},
    ),
    Row("b1", "optimizer.beta1"),
    Row("b2", "optimizer.beta2"),
    Row("eps", "optimizer.epsilon"),
    Row("eps_root", fixed=(0.0,), note="mtf adds epsilon outside the root"),
    Row(
        "weight_decay",
        "optimizer.weight_decay_rate",
        "mtf does not decay norm scales",
        default=1e-4,
    ),
    Row("mask", fixed=(None,), note="mtf decays all parameters but norm scales"),
    Row("mu_dtype", fixed=(None, "float32"), note="mtf keeps moments in float32"),
)
_COSINE_ROWS = (
    Row("init_value", fixed=(0.0, 0), note="mtf's warmup starts from 0"),
    Row("peak_value", "adamw.base_learning_rate"),
    Row("warmup_steps", "adamw.warmup_steps"),
    Row("decay_steps", "adamw.steps_per_cycle", "less the warmup"),
    Row("end_value", fixed=(0.0, 0), note="mtf's cosine decay ends at 0"),
    Row("exponent", fixed=(1.0, 1), note="mtf has no exponent"),
)

# Section → the configurable in a role, and its parameters.
T5X: dict[str, Section] = {
    "train": Section("train_script.train", _TRAIN_ROWS),
    "train_data": Section("train/utils.DatasetConfig", _TRAIN_DATA_ROWS),
    "eval_data": Section("train_eval/utils.DatasetConfig", _EVAL_DATA_ROWS),
    "infer_eval_data": Section("infer_eval/utils.DatasetConfig", _INFER_EVAL_ROWS),
    "evaluate": Section("eval_script.evaluate", _EVALUATE_ROWS),
    "evaluate_data": Section("utils.DatasetConfig", _JOB_DATA_ROWS),
    "infer": Section("infer_script.infer", _INFER_ROWS),
    "infer_data": Section("utils.DatasetConfig", _JOB_DATA_ROWS),
    "checkpoint": Section("utils.CheckpointConfig", _CHECKPOINT_ROWS),
    "restore": Section("utils.RestoreCheckpointConfig", _RESTORE_ROWS),
    "job_restore": Section("utils.RestoreCheckpointConfig", _JOB_RESTORE_ROWS),
    "save": Section("utils.SaveCheckpointConfig", _SAVE_ROWS),
    "best": Section("checkpoints.SaveBestCheckpointer", _BEST_ROWS),
    "partitioner": Section("partitioning.PjitPartitioner", _PARTITIONER_ROWS),
    "axis_rules": Section("partitioning.standard_logical_axis_rules", _AXIS_RULES_ROWS),
    "trainer": Section("trainer.Trainer", _TRAINER_ROWS),
    "nan_action": Section(
        "trainer.TerminateOnNanAction",
        (Row("task", anything=True, note="ends the run in any case"),),
    ),
    "schedule": Section("utils.create_learning_rate_scheduler", _SCHEDULE_ROWS),
    "evaluator": Section(
        "seqio.Evaluator",
        (
            Row("num_examples", "evaluator.num_examples", default=None),
            *(_LOGGER_CLS, _MEMORY_CACHE),
        ),
    ),
    "job_evaluator": Section(
        "seqio.Evaluator",
        (
            Row("num_examples", fixed=(None,), note="mtf's `Evaluate` takes all examples"),
            *(_LOGGER_CLS, _MEMORY_CACHE),
        ),
    ),
    "logger": Section("seqio.TensorBoardLogger", ()),
    "json_logger": Section(
        "seqio.JSONLogger",
        (Row("write_n_results", fixed=(None,), note="mtf writes all predictions"),),
    ),
    "model": Section("models.EncoderDecoderModel", _MODEL_ROWS),
    "decoding_model": Section("models.EncoderDecoderModel", _DECODING_MODEL_ROWS),
    "loss": Section("models.EncoderDecoderModel.loss_fn", _LOSS_ROWS),
    "predict": Section("models.EncoderDecoderModel.predict_batch_with_aux", _PREDICT_ROWS),
    "beam_search": Section("decoding.beam_search", _BEAM_ROWS),
    "temperature_sample": Section("decoding.temperature_sample", _SAMPLE_ROWS),
    "pieces": Section(
        "seqio.SentencePieceVocabulary",
        (
            Row("sentencepiece_model_file", "data.vocabulary.path"),
            Row("extra_ids", "data.vocabulary.extra_ids", default=0),
            Row("reverse_extra_ids", fixed=(True,), note="mtf's sentinels descend"),
        ),
    ),
    "bytes": Section(
        "seqio.ByteVocabulary", (Row("extra_ids", "data.vocabulary.extra_ids", default=0),)
    ),
    "transformer": Section(
        "network.Transformer", (Row("config", parts={"network.T5Config": "network"}),)
    ),
    "network": Section("network.T5Config", _NETWORK_ROWS),
    "adafactor": Section("adafactor.Adafactor", _ADAFACTOR_ROWS),
    "factor_rules": Section("adafactor.standard_logical_factor_rules", ()),
    "chain": Section(
        "optimizers.chain",
        (
            Row(
                "transformations",
                parts={
                    "optax.adamw": "adamw",
                    "optax.clip": "clip",
                    "optax.clip_by_global_norm": "clip_by_global_norm",
                },
            ),
        ),
    ),
    "adamw": Section("optax.adamw", _ADAMW_ROWS),
    "clip": Section(
        "optax.clip",
        (Row("max_delta", note="mtf clips the norm of all gradients, not each gradient"),),
    ),
    "clip_by_global_norm": Section(
        "optax.clip_by_global_norm", (Row("max_norm", "optimizer.global_norm_clip_threshold"),)
    ),
    "warmup_cosine": Section("optax.warmup_cosine_decay_schedule", _COSINE_ROWS),
}
