"""Defines the table that translates T5X's gin bindings (T5X at commit cc342d4).

The table is based on the bindings in t5x/configs/runs/*.gin and t5x/examples/ and on the signatures
in t5x/{train,eval,infer,utils,models,partitioning,adafactor}.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from mtf.cli.gin.rows import (
    NotTranslatedError,
    Row,
    Section,
    as_tuple,
    default_of,
    fields,
    ignored,
    must,
    one_of,
    only,
    table,
)
from mtf.partitioning import FULLY_SHARDED_AXIS_RULES
from mtf.training.settings import AdafactorConfig, ScheduleConfig, field_names

# Module of a network that mtf has → whether each of its layers has a relative position bias.
NETWORKS = {
    "t5x.examples.t5.network": False,
    "t5x.examples.scalable_t5.network": True,
    "t5x.contrib.gpu.t5.network": False,  # a copy of the first that can also scale attention
}
# Module → canonical names of its configurables. The module of a script may also be `__main__`.
_CONFIGURABLES = {
    "t5x.train": "train_script.train",
    "t5x.eval": "eval_script.evaluate",
    "t5x.infer": "infer_script.infer",
    "t5x.utils": "utils.DatasetConfig utils.CheckpointConfig utils.RestoreCheckpointConfig "
    "utils.SaveCheckpointConfig utils.create_learning_rate_scheduler utils.get_dataset "
    "utils.get_training_eval_datasets utils.verify_matching_vocabs utils.TrainStateInitializer",
    "t5x.partitioning": "partitioning.PjitPartitioner partitioning.ModelBasedPjitPartitioner "
    "partitioning.standard_logical_axis_rules",
    "t5x.trainer": "trainer.Trainer trainer.TerminateOnNanAction",
    "t5x.gin_utils": "gin_utils.summarize_gin_config",
    "t5x.checkpoints": "checkpoints.Checkpointer checkpoints.SaveBestCheckpointer",
    "t5x.models": "models.EncoderDecoderModel models.EncoderDecoderModel.predict_batch_with_aux "
    "models.EncoderDecoderModel.loss_fn models.DecoderOnlyModel",
    "t5x.decoding": "decoding.beam_search decoding.temperature_sample",
    **dict.fromkeys(NETWORKS, "network.Transformer network.T5Config"),
    "t5x.adafactor": "adafactor.Adafactor adafactor.standard_logical_factor_rules",
    "seqio": "seqio.SentencePieceVocabulary seqio.ByteVocabulary seqio.Evaluator "
    "seqio.PyLoggingLogger seqio.TensorBoardLogger seqio.JSONLogger",
}
# Full name of a configurable, including its module → canonical name of the configurable.
T5X_NAMES = {
    f"{place}.{name.partition('.')[2]}": name
    for module, names in _CONFIGURABLES.items()
    for name in names.split()
    for place in (["__main__"] if "_script." in name else []) + [module]
}

NO_SEED = "the original draws a new seed at every start; mtf uses a fixed seed to resume exactly"


def seed(value: Any) -> Any:
    """Returns `value`, or raises NotTranslatedError if it is None."""
    if value is None:
        raise NotTranslatedError(NO_SEED)
    return value


def _axis_rules(value: Any) -> Any:
    """Returns given rules as a tuple, or the rules that a function stands for."""
    if value is None:
        raise NotTranslatedError("mtf uses the standard rules")
    if isinstance(value, list | tuple):
        return as_tuple(value)
    if str(value).rstrip("()").endswith("fully_sharded_logical_axis_rules"):
        return FULLY_SHARDED_AXIS_RULES
    raise NotTranslatedError(f"{value} is a function that mtf does not know")


def _restored(value: Any) -> Any:
    if isinstance(value, list | tuple):
        if len(value) > 1:
            raise NotTranslatedError("mtf restores from only one path")
        return value[0] if value else None
    return value or None


def _lengths(value: Any) -> Any:
    if value is None:
        raise NotTranslatedError(
            "mtf does not look for the longest example; bind lengths such as "
            "{'inputs': 512, 'targets': 128}"
        )
    return value


_BATCHES = "mtf uses one batch size for training and evaluation"
_SAME_DATA = "mtf evaluates on held-out data that is prepared like the training data"
_OTHER_DATA = (
    "mtf evaluates on held-out data of the training mixture; to leave an evaluation out, set "
    "train_script.train.train_eval_dataset_cfg or infer_eval_dataset_cfg to None"
)
_NO_PACKING = "mtf never packs inputs for decoding"
_BUILT_IN = "@utils.TrainStateInitializer"
_NOT_IN_JOB = "this job has no such setting in mtf"
_NET = "model.network."
_SAVE = "checkpoint.save."
_RESTORE = "checkpoint.restore."
_DEVICES = "partitioner."
_SUBMESH = "model_parallel_submesh"
_DIMS = "1 and 1 give the standard rules, 2 and 2 give FULLY_SHARDED_AXIS_RULES"
_MATRICES = "mtf factors the second moment of every large matrix, along both dimensions"
_TASK = "data.mixture_or_task_name"
_MODULES = "or a module that the gin files import"
_PARTITIONERS = dict.fromkeys(
    ("partitioning.PjitPartitioner", "partitioning.ModelBasedPjitPartitioner"), "partitioner"
)
_VOCABULARIES = {"seqio.SentencePieceVocabulary": "pieces", "seqio.ByteVocabulary": "bytes"}
_LOGGERS = {
    "seqio.PyLoggingLogger": "logger",
    "seqio.TensorBoardLogger": "logger",
    "seqio.JSONLogger": "json_logger",
}

_SPLIT = Row("split", "data.eval_split", type=str | None)
_LENGTHS = Row(
    "task_feature_lengths",
    "data.task_feature_lengths",
    convert=_lengths,
    type=dict[str, int],
    refused=True,
)
_SAME_LENGTHS = dataclasses.replace(_LENGTHS, path=None, equals=_LENGTHS.path, note=_OTHER_DATA)
_MODULE = Row("module", "data.module", _MODULES, type=str | None)
_OF_ALL_DATA = (
    only("use_custom_packing_ops", False, note="mtf always uses its own packing"),
    must("trim_output_features", True, note="mtf always trims features"),
    must("runtime_preprocessors", None, note="mtf reads SeqIO's tasks"),
    *ignored("use_memory_cache num_prefetch_threads num_workers"),
)
_OF_HELD_OUT_DATA = (
    Row("mixture_or_task_name", equals=_TASK, note=_OTHER_DATA, refused=True),
    Row("batch_size", equals="batch_size", note=_BATCHES),
    only("shuffle", False, note="mtf evaluates the same examples every time"),
    *ignored("seed"),
    Row("use_cached", equals="data.use_cached", note=_SAME_DATA),
    Row("module", equals="data.module", note=_SAME_DATA),
    *_OF_ALL_DATA,
)
_OF_EVALUATORS = (
    Row("logger_cls", parts=_LOGGERS, note="mtf always writes text, JSON and event files"),
    *ignored("use_memory_cache"),
)
_OF_MODELS = (
    Row("input_vocabulary", parts=_VOCABULARIES),
    Row("output_vocabulary", parts=_VOCABULARIES),
    Row(
        "decode_fn",
        parts={
            "decoding.beam_search": "beam_search",
            "decoding.temperature_sample": "temperature_sample",
        },
    ),
)
# Of evaluation and inference.
_OF_JOBS = (
    Row("model", parts={"models.EncoderDecoderModel": "decoding_model"}),
    Row("dataset_cfg", parts={"utils.DatasetConfig": "job_data"}),
    Row("restore_checkpoint_cfg", parts={"utils.RestoreCheckpointConfig": "job_restore"}),
    Row("partitioner", parts=_PARTITIONERS),
    only("train_state_initializer_cls", _BUILT_IN, note="built in"),
    only("fallback_init_rng", None, note="mtf never evaluates or decodes initial parameters"),
    *ignored("summarize_config_fn use_orbax"),
)

# Name of a section → section with a configurable and the rows for its parameters.
T5X: dict[str, Section] = table(
    train=(
        "train_script.train",
        Row("model", parts={"models.EncoderDecoderModel": "model"}),
        Row("model_dir", "model_dir", "by default, `runs/NAME-TIME`", optional=True),
        Row("train_dataset_cfg", parts={"utils.DatasetConfig": "train_data"}),
        Row(
            "train_eval_dataset_cfg",
            "data.eval_split",
            "None disables evaluation",
            parts={"utils.DatasetConfig": "eval_data"},
            type=str | None,
        ),
        Row(
            "infer_eval_dataset_cfg",
            "evaluator",
            "None disables evaluation by decoding",
            parts={"utils.DatasetConfig": "infer_eval_data"},
        ),
        Row("checkpoint_cfg", parts={"utils.CheckpointConfig": "checkpoint"}),
        Row("partitioner", parts=_PARTITIONERS),
        Row("trainer_cls", parts={"trainer.Trainer": "trainer"}),
        Row("total_steps", "train_steps"),
        Row("eval_steps", "trainer.eval_steps", "None and 0 mean all", default_of(None)),
        Row(
            "eval_period",
            "trainer.eval_period",
            "0 disables evaluation; also sets `evaluator.period`",
            default_of(None),
        ),
        Row(
            "relative_steps",
            "relative_steps",
            "counted from the step of the initial checkpoint",
            fixed=(None,),
            type=int,
        ),
        Row(
            "stats_period",
            "trainer.stats_period",
            "by default, 100 (in T5X, `eval_period`)",
            fixed=(None,),
        ),
        Row("random_seed", "random_seed", NO_SEED, seed),
        only("use_hardware_rng", False, note="mtf uses JAX's default random generator"),
        Row("inference_evaluator_cls", parts={"seqio.Evaluator": "evaluator"}),
        must("get_dataset_fn", "@utils.get_dataset", note="set `data` of the recipe instead"),
        Row(
            "actions",
            parts={"trainer.TerminateOnNanAction": "nan_action"},
            note="mtf has no other actions; a loss that is not finite always ends a run",
        ),
        must("train_eval_get_dataset_fn", "@utils.get_training_eval_datasets", note=_OTHER_DATA),
        Row("run_eval_before_training", "trainer.run_eval_before_training"),
        must("train_state_initializer_cls", _BUILT_IN, note="mtf has only T5X's initialization"),
        *ignored("summarize_config_fn use_orbax verify_matching_vocabs_fn"),
        *ignored("concurrent_metrics gc_period"),
    ),
    train_data=(
        "train/utils.DatasetConfig",
        Row("mixture_or_task_name", _TASK, type=str),
        _LENGTHS,
        Row("split", "data.split"),
        Row("batch_size", "batch_size"),
        Row("shuffle", "data.shuffle"),
        Row("seed", "data.seed", NO_SEED, seed),
        Row(
            "use_cached",
            "data.use_cached",
            "mtf reads the SeqIO caches in `--seqio_additional_cache_dirs`; without this flag, it "
            "renders and tokenizes examples during training",
            default=False,
        ),
        Row("pack", "data.pack", default=False),
        _MODULE,
        *_OF_ALL_DATA,
    ),
    eval_data=(
        "train_eval/utils.DatasetConfig",
        _SAME_LENGTHS,
        _SPLIT,
        Row("pack", equals="data.pack", note=_SAME_DATA),
        *_OF_HELD_OUT_DATA,
    ),
    infer_eval_data=(
        "infer_eval/utils.DatasetConfig",
        dataclasses.replace(_SAME_LENGTHS, fixed=(None,)),  # mtf truncates to these lengths
        Row("split", equals="data.eval_split", note="mtf evaluates on one split", refused=True),
        only("pack", False, note=_NO_PACKING),
        *_OF_HELD_OUT_DATA,
    ),
    evaluate=(
        "eval_script.evaluate",
        Row("output_dir", "output_dir", "by default, `runs/evaluate-TIME`", optional=True),
        Row("inference_evaluator_cls", parts={"seqio.Evaluator": "job_evaluator"}),
        only("training_evaluator_cls", None, note="`Evaluate` does not compute training losses"),
        *ignored("train_eval_get_dataset_fn"),  # only for training losses
        *_OF_JOBS,
    ),
    job_data=(
        "utils.DatasetConfig",
        Row("mixture_or_task_name", _TASK, type=str),
        _LENGTHS,
        _SPLIT,
        Row("batch_size", "batch_size"),
        *ignored("shuffle seed"),
        only("use_cached", False, note="set `data.cache_dir` to a token cache"),
        only("pack", False, note=_NO_PACKING),
        _MODULE,
        *_OF_ALL_DATA,
    ),
    infer=(
        "infer_script.infer",
        Row("mode", "mode"),
        Row("output_dir", "output_dir", "by default, `RUN/inference`", optional=True),
        *fields("", "checkpoint_period shard_id num_shards"),
        *ignored("merge_chunked_results checkpoint_ds_iter verify_matching_vocabs_fn"),
        Row("write_fn", note="mtf writes JSON lines, as T5X does by default"),
        Row("merge_fn", note="mtf merges JSON lines, as T5X does by default"),
        only("output_vocab_feature_name", "targets", note="mtf always decodes targets"),
        only("file_extension", "jsonl", note="mtf always writes .jsonl files"),
        only("keep_aux_as_numpy", False, note="mtf always writes JSON"),
        *_OF_JOBS,
    ),
    checkpoint=(
        "utils.CheckpointConfig",
        Row(
            "restore",
            "checkpoint.restore",
            "None trains from scratch",
            parts={"utils.RestoreCheckpointConfig": "restore"},
        ),
        Row(
            "save",
            "checkpoint.save",
            "for None, mtf saves the last step",
            parts={"utils.SaveCheckpointConfig": "save"},
            type=type(None),
        ),
    ),
    restore=(
        "utils.RestoreCheckpointConfig",
        Row(
            "path",
            _RESTORE + "path",
            "[] trains from scratch; T5X's conversions replace Google's original checkpoints",
            _restored,
            type=str | None,
            refused=True,
        ),
        Row("mode", _RESTORE + "mode"),
        must("dtype", None, "float32", note="mtf always trains float32 parameters"),
        Row("assignment_map", _RESTORE + "assignment_map", convert=as_tuple),
        only("strict", True, note="mtf restores the complete optimizer state"),
        Row("fallback_to_scratch", _RESTORE + "fallback_to_scratch"),
        only("checkpointer_cls", "@checkpoints.Checkpointer", note="mtf detects the layout"),
        must("state_transformation_fns", [], (), note="use `assignment_map`"),
        *ignored("checkpoint_manager_cls"),
    ),
    job_restore=(
        "utils.RestoreCheckpointConfig",
        Row("path", "checkpoint", convert=_restored, refused=True),
        Row(
            "mode",
            "checkpoint_steps",
            "`all` means all checkpoints of the run",
            lambda mode: mode if mode == "all" else None,
        ),
        Row(
            "dtype",
            "dtype",
            "the dtype of parameters and activations; by default, float32",
            default_of("float32"),
        ),
        must("assignment_map", None, [], False, note=_NOT_IN_JOB),
        only("strict", True, note=_NOT_IN_JOB),
        only("fallback_to_scratch", None, [], False, note=_NOT_IN_JOB),
        only("checkpointer_cls", "@checkpoints.Checkpointer", note=_NOT_IN_JOB),
        must("state_transformation_fns", [], (), note=_NOT_IN_JOB),
        only("checkpoint_manager_cls", None, [], False, note=_NOT_IN_JOB),
    ),
    save=(
        "utils.SaveCheckpointConfig",
        Row("period", _SAVE + "period", default=None),
        Row("dtype", _SAVE + "dtype", convert=default_of("float32")),
        Row("keep", _SAVE + "keep"),
        Row(
            "checkpoint_steps", _SAVE + "checkpoint_steps", convert=lambda steps: tuple(steps or ())
        ),
        # Every checkpoint of mtf contains the state of the data iterator.
        *ignored("save_dataset keep_dataset_checkpoints checkpoint_manager_cls"),
        Row(
            "checkpointer_cls",
            parts={
                "checkpoints.Checkpointer": "logger",
                "checkpoints.SaveBestCheckpointer": "best",
            },
        ),
        only("state_transformation_fns", [], (), note="mtf saves the state unchanged"),
    ),
    best=(
        "checkpoints.SaveBestCheckpointer",
        *fields(_SAVE, "metric_name_to_monitor"),
        *fields(_SAVE, metric_mode="max", keep_checkpoints_without_metrics=True),
        only("force_keep_period", None, note="use `checkpoint.save.checkpoint_steps`"),
    ),
    partitioner=(
        "partitioning.PjitPartitioner",
        Row("num_partitions", _DEVICES + "num_partitions"),
        Row(_SUBMESH, _DEVICES + _SUBMESH, convert=as_tuple),
        Row(
            "logical_axis_rules",
            _DEVICES + "logical_axis_rules",
            "a list of rules or a function named fully_sharded_logical_axis_rules",
            _axis_rules,
            parts={"partitioning.standard_logical_axis_rules": "axis_rules"},
        ),
        only("params_on_devices", True, note="mtf always keeps parameters on devices"),
        only("backend", None, note="set the environment variable JAX_PLATFORMS"),
        *ignored("use_cpu_pjit"),
        *(only(f"{n}_mesh_shape", None, note=f"use `{_SUBMESH}`") for n in ("ici", "dcn")),
    ),
    axis_rules=(
        "partitioning.standard_logical_axis_rules",
        Row("activation_partitioning_dims", "axis_rules.activations", _DIMS, one_of(1, 2)),
        Row("parameter_partitioning_dims", "axis_rules.parameters", convert=one_of(1, 2)),
        only("additional_rules", None, [], (), note="set `partitioner.logical_axis_rules`"),
    ),
    trainer=(
        "trainer.Trainer",
        Row("num_microbatches", "trainer.num_microbatches", "None and 0 mean 1", default_of(1)),
        Row("learning_rate_fn", parts={"utils.create_learning_rate_scheduler": "schedule"}),
        only("weight_metrics_computer", None, note="mtf does not log the norm of each weight"),
    ),
    nan_action=("trainer.TerminateOnNanAction", *ignored("task")),
    schedule=(
        "utils.create_learning_rate_scheduler",
        *fields("optimizer.learning_rate.", field_names(ScheduleConfig)),
    ),
    evaluator=(
        "seqio.Evaluator",
        Row("num_examples", "evaluator.num_examples", default=None),
        *_OF_EVALUATORS,
    ),
    job_evaluator=(
        "seqio.Evaluator",
        only("num_examples", None, note="mtf's `Evaluate` uses all examples"),
        *_OF_EVALUATORS,
    ),
    logger=("seqio.TensorBoardLogger",),
    json_logger=(
        "seqio.JSONLogger",
        only("write_n_results", None, note="mtf always writes all predictions"),
    ),
    model=(
        "models.EncoderDecoderModel",
        Row("module", parts={"network.Transformer": "transformer"}),
        Row("optimizer_def", "optimizer", parts={"adafactor.Adafactor": "adafactor"}, optax=True),
        Row("z_loss", "model.z_loss", default=0.0),
        *fields("model.", "label_smoothing loss_normalizing_factor"),
        must("feature_converter_cls", None, note="mtf has only encoder-decoder models"),
        must("default_decoder_params", None, note="set `evaluator.decoding`"),
        *_OF_MODELS,
    ),
    decoding_model=(
        "models.EncoderDecoderModel",
        # mtf reads the model from the checkpoint.
        *ignored("module optimizer_def z_loss label_smoothing loss_normalizing_factor"),
        *ignored("feature_converter_cls default_decoder_params"),
        *_OF_MODELS,
    ),
    # Since 2022, these have been parameters of the model.
    loss=(
        "models.EncoderDecoderModel.loss_fn",
        *fields("model.", "z_loss label_smoothing loss_normalizing_factor"),
    ),
    predict=(
        "models.EncoderDecoderModel.predict_batch_with_aux",
        Row("num_decodes", "decoding.num_beams", type=int),
        only("return_all_decodes", False, None, note="set `decoding.num_return`"),
        must("decoder_params", None, note="set `decoding`"),
        must("prompt_with_targets", False, note="mtf always decodes from the first token"),
    ),
    beam_search=(
        "decoding.beam_search",
        Row("alpha", "decoding.length_penalty", type=float),
        *ignored("num_decodes"),  # that of `predict_batch_with_aux` counts
        Row("max_decode_len", "decoding.max_length", fixed=(None,), type=int),
        only("min_log_prob", -1.0e7, note="mtf always uses -1e7"),
    ),
    temperature_sample=(
        "decoding.temperature_sample",
        Row("temperature", "decoding.temperature", type=float),
        Row("topk", "decoding.top_k", "1 means greedy decoding", default=1, type=int),
        Row("topp", "decoding.top_p", "0 means 1", default_of(1.0), type=float),
        Row("max_decode_steps", "decoding.max_length", fixed=(None,), type=int),
        *ignored("rescale_log_probs"),
    ),
    pieces=(
        "seqio.SentencePieceVocabulary",
        Row("sentencepiece_model_file", "data.vocabulary.path", type=str | None),
        Row("extra_ids", "data.vocabulary.extra_ids", default=0),
        must("reverse_extra_ids", True, note="mtf numbers sentinels in descending order"),
    ),
    bytes=("seqio.ByteVocabulary", Row("extra_ids", "data.vocabulary.extra_ids", default=0)),
    transformer=("network.Transformer", Row("config", parts={"network.T5Config": "network"})),
    network=(
        "network.T5Config",
        *fields(_NET, vocab_size=None, emb_dim=512, num_heads=8, head_dim=64),
        *fields(_NET, num_encoder_layers=6, num_decoder_layers=6, mlp_dim=2048),
        Row("mlp_activations", _NET + "mlp_activations", convert=as_tuple, default=("relu",)),
        *fields(_NET, "dropout_rate logits_via_embedding"),
        Row("dtype", _NET + "dtype", default="float32"),
        Row("scale_attn_logits", fixed=(False,), note="mtf does not scale attention", refused=True),
        *ignored("float32_attention_logits param_scan_axis"),
        *fields(_NET, "scan_layers remat_policy"),
    ),
    adafactor=(
        "adafactor.Adafactor",
        only("learning_rate", None, note="mtf uses the trainer's schedule"),
        *fields("optimizer.", field_names(AdafactorConfig, "learning_rate")),
        must("dtype_momentum", "float32", "@jax.numpy.float32", note="mtf keeps float32 moments"),
        must("factor_map", None, note=_MATRICES),
        Row(
            "logical_factor_rules",
            note=_MATRICES,
            fixed=(None,),
            parts={"adafactor.standard_logical_factor_rules": "factor_rules"},
            refused=True,
        ),
        must("max_parameter_scale", None, note="mtf does not limit the scale"),
        Row("skip_nan_updates", "trainer.skip_nonfinite_updates", "also skips infinite updates"),
    ),
    factor_rules=("adafactor.standard_logical_factor_rules",),
)
