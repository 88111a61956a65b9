"""What the gin bindings of Mesh TensorFlow's T5 (`t5_mesh_transformer`) become.

Sources: mesh_tensorflow/transformer/{utils,transformer,transformer_layers,learning_rate_schedules}
and gin/defaults.gin; t5/models/mesh_transformer.py and t5/models/gin/ of T5.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from mtf.gin.rows import NotTranslatedError, Row, Section, default_of
from mtf.gin.t5x_table import NO_SEED

# The package's own values, which a run starts from.
DEFAULTS = """
num_layers = 6
d_model = 1024
d_ff = 4096
num_heads = 8
d_kv = 128
dropout_rate = 0.1
make_layer_stack.num_layers = %num_layers
Unitransformer.d_model = %d_model
Unitransformer.shared_embedding_and_softmax_weights = True
DenseReluDense.hidden_size = %d_ff
DenseReluDense.dropout_rate = %dropout_rate
SelfAttention.num_heads = %num_heads
SelfAttention.key_value_size = %d_kv
SelfAttention.dropout_rate = %dropout_rate
utils.run.sequence_length = {"inputs": 512, "targets": 512}
utils.run.learning_rate_schedule = @learning_rate_schedule_noam
utils.tpu_mesh_shape.model_parallelism = 1
utils.serialize_num_microbatches.tokens_per_microbatch_per_replica = 2048
utils.get_variable_dtype.activation_dtype = "bfloat16"
"""

_NETWORK = "model.network."
_SAME_RESULT = "changes no result"


def _seed(value: Any) -> Any:
    if value is None:
        raise NotTranslatedError(NO_SEED)
    return value


def _path(value: Any) -> Any:
    """Returns a path, and None for a function that looks the mixture's up."""
    return value if isinstance(value, str) else None


def _activations(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value)


def _anything(*names: str) -> tuple[Row, ...]:
    return tuple(Row(name, anything=True, note=_SAME_RESULT) for name in names)


def _fixed(**values: Any) -> tuple[Row, ...]:
    """Returns rows of parameters that must have the values of T5."""
    return tuple(Row(name, fixed=_choices(value)) for name, value in values.items())


def _network(**values: Any) -> tuple[Row, ...]:
    """Returns rows of parameters with which the network would be another than T5's."""
    return tuple(dataclasses.replace(row, refused=True) for row in _fixed(**values))


def _choices(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


_RUN_ROWS = (
    Row("mode", "mesh.mode", "the job: `Train`, `Evaluate` or `Infer`", default="train"),
    Row("model_type", "mesh.model_type", "only `bitransformer`"),
    Row("train_steps", "train_steps"),
    Row(
        "batch_size",
        "mesh.batch_size",
        "tokens are divided by the longer of the two lengths",
        default=("tokens_per_replica", 2048),
    ),
    Row("sequence_length", "data.task_feature_lengths"),
    Row("learning_rate_schedule", "mesh.schedule", "", convert=lambda value: value),
    Row("optimizer", parts={"AdafactorOptimizer": "AdafactorOptimizer"}),
    Row("save_checkpoints_steps", "checkpoint.save.period", default=5000),
    Row("keep_checkpoint_max", "checkpoint.save.keep", "0: all", convert=default_of(None)),
    Row("init_checkpoint", "checkpoint.restore.path", convert=default_of(None)),
    Row("dataset_split", "mesh.split", default="train"),
    Row("eval_checkpoint_step", "mesh.eval_step", "also `step` of `Infer`"),
    Row("mesh_shape", "mesh.mesh_shape", "`model:N`", convert=lambda value: value),
    Row(
        "train_dataset_fn",
        parts={
            "mesh_train_dataset_fn": "mesh_train_dataset_fn",
            "tsv_dataset_fn": "tsv_dataset_fn",
        },
    ),
    Row("layout_rules", anything=True, note="mtf has T5X's rules of logical axes"),
    Row("skip_seen_data", anything=True, note="mtf continues after the last batch"),
    *_fixed(predict_fn=None, variable_filter=None, ensemble_inputs=None, total_run_steps=None),
    *_anything("vocabulary", "eval_dataset_fn", "autostack", "iterations_per_loop"),
    *_anything("eval_summary_dir", "mesh_devices", "perplexity_eval_steps", "output_eval_examples"),
    *_anything("export_checkpoint_step", "export_path", "checkpoint_input_pipeline"),
    *_anything("seen_data_init_step", "train_model_fn", "tpu_job_name", "tpu", "gcp_project"),
    *_anything("tpu_zone", "model_dir"),
)
_DROPOUT = Row("dropout_rate", "mesh.dropout_rate", fixed=(None,))
_EPSILON = Row("epsilon", fixed=(1e-6,), refused=True)
_LAYER_STACK_ROWS = (
    _DROPOUT,
    Row("norm_epsilon", fixed=(None, 1e-6), refused=True),
    Row(
        "recompute_grads",
        "model.network.remat_policy",
        'True: "full"',
        convert=lambda value: "full" if value else "none",
    ),
    *_anything("sublayers_final", "sublayers_initial", "sublayers_per_layer"),
)
_UNITRANSFORMER_ROWS = (
    Row("d_model", _NETWORK + "emb_dim"),
    Row("shared_embedding_and_softmax_weights", _NETWORK + "logits_via_embedding"),
    Row("label_smoothing", "model.label_smoothing"),
    Row("z_loss", "model.z_loss"),
    Row(
        "loss_denominator",
        "model.loss_normalizing_factor",
        "None: NUM_TOTAL_TARGET_TOKENS",
        convert=lambda value: value or "NUM_TOTAL_TARGET_TOKENS",
        default="NUM_TOTAL_TARGET_TOKENS",
    ),
    *_network(positional_embedding=False, sinusoid_positional_embedding=False, ensemble=None),
    *_network(input_full_attention=False, vocab_divisor=128),
    *_fixed(loss_fn=None, loss_on_targets_only=False, token_dropout_rate=0.0),
    *_anything("max_length"),
)
_ATTENTION_ROWS = (
    Row("num_heads", _NETWORK + "num_heads"),
    Row("key_value_size", _NETWORK + "head_dim"),
    Row("relative_attention_num_buckets", _NETWORK + "relative_attention_num_buckets"),
    _DROPOUT,
    *_network(relative_attention_type="bias_shared", num_memory_heads=0, shared_kv=False),
    *_network(attention_func=None, attention_kwargs=(None, {})),
    *_fixed(fold_scaling_into_initializer=True),
    *_anything("combine_dims", "keep_query_heads_dims"),
)
_ADAFACTOR_ROWS = (
    Row("beta1", "optimizer.beta1", "0: None", convert=default_of(None)),
    Row("decay_rate", "optimizer.decay_rate", "None: 0.8", convert=default_of(0.8)),
    *(
        Row(name, f"optimizer.{name}")
        for name in (
            *("clipping_threshold", "epsilon1", "epsilon2", "factored"),
            *("min_dim_size_to_factor", "multiply_by_parameter_scale"),
        )
    ),
)
_OFFSET = Row("offset", fixed=(0,))
RAMP = "the linear decay to 0 at the end of the run is left out"
_DATA_ROWS = (
    Row("use_cached", "data.use_cached", "reads the caches in `--additional_task_cache_dirs`"),
    Row("seed", "data.seed", NO_SEED, convert=_seed),
    Row("pack", "data.pack"),
)

_LAYERS = Row(
    "layers",
    parts={name: name for name in ("SelfAttention", "EncDecAttention", "DenseReluDense")},
)
# Configurable → its parameters.
MESH: dict[str, Section] = {
    name: Section(name, rows)
    for name, rows in {
        "run": _RUN_ROWS,
        "tpu_mesh_shape": (
            Row("tpu_topology", "mesh.tpu_topology", "with `model_parallelism`: replicas"),
            Row("model_parallelism", "partitioner.num_partitions"),
            Row("ensemble_parallelism", fixed=(None,)),
        ),
        "serialize_num_microbatches": (
            Row(
                "tokens_per_microbatch_per_replica",
                "mesh.tokens_per_microbatch",
                "Mesh TensorFlow's rule, for the replicas of the topology",
            ),
        ),
        "get_variable_dtype": (
            Row("activation_dtype", "model.network.dtype", "without `--tpu`: float32"),
            Row("slice_dtype", anything=True, note="mtf keeps parameters in float32"),
            Row("master_dtype", anything=True, note="mtf keeps parameters in float32"),
        ),
        "Unitransformer": _UNITRANSFORMER_ROWS,
        "Unitransformer.sample_autoregressive": _anything("temperature"),
        "Bitransformer": _network(shared_embedding=True),
        "Bitransformer.decode": (
            Row("beam_size", "decoding.num_beams", "1: `decoding.method` is greedy or sample"),
            Row("alpha", "decoding.length_penalty"),
            Row("temperature", "decoding.temperature", "0: greedy"),
            Row("max_decode_length", "decoding.max_length"),
            Row("sampling_keep_top_k", "decoding.top_k", "-1: 0"),
        ),
        "make_layer_stack": (
            Row("num_layers", "mesh.num_layers", "of the encoder and of the decoder"),
            _LAYERS,
            *_anything("block_scope"),
        ),
        "make_bitransformer": _anything("encoder_name", "decoder_name"),
        "DenseReluDense": (
            Row("hidden_size", _NETWORK + "mlp_dim"),
            Row(
                "activation", _NETWORK + "mlp_activations", convert=_activations, default=("relu",)
            ),
            _DROPOUT,
            *_network(use_bias=False),
        ),
        "SelfAttention": _ATTENTION_ROWS,
        "EncDecAttention": _network(relative_attention_type=None),
        "LocalSelfAttention": _anything("dropout_rate"),
        "LayerStack": _LAYER_STACK_ROWS,
        "sublayer_dropout": (_DROPOUT,),
        "sublayer_legacy_dropout": (_DROPOUT,),
        "sublayer_rms_norm": (_EPSILON, *_anything("name")),
        "sublayer_legacy_rms_norm": (_EPSILON, *_anything("name")),
        "sublayer_legacy_final_rms_norm": (_EPSILON, *_anything("name")),
        "AdafactorOptimizer": _ADAFACTOR_ROWS,
        "adafactor_decay_rate_pow": (
            Row("offset", "optimizer.step_offset"),
            Row("exponent", "optimizer.decay_rate"),
        ),
        "constant_learning_rate": (Row("learning_rate", "mesh.rate.constant_learning_rate"),),
        "learning_rate_schedule_noam": (
            Row("multiplier", "mesh.rate.multiplier"),
            Row("warmup_steps", "mesh.rate.warmup_steps", convert=int),
            Row("linear_decay_fraction", "mesh.rate.ramp", RAMP, default=0.1),
            _OFFSET,
        ),
        "truncated_rsqrt": (Row("warmup_steps", "mesh.rate.warmup_steps", convert=int),),
        "linear_decay": (Row("steps_or_fraction", "mesh.rate.ramp", RAMP, default=0.1),),
        "constant": (Row("value", "mesh.rate.constant"),),
        "product_learning_rate": (_OFFSET,),
        "mesh_train_dataset_fn": (
            Row("mixture_or_task_name", "mesh.train_mixture"),
            *_DATA_ROWS,
        ),
        "mesh_eval_dataset_fn": (
            Row("mixture_or_task_name", "mesh.eval_mixture"),
            Row("use_cached", fixed=(False,), note="set `data.cache_dir` to a token cache"),
            *_anything("seed", "pack"),
            Row("num_eval_examples", fixed=(None,), note="mtf evaluates all examples"),
        ),
        "tsv_dataset_fn": (
            Row("filename", "data.files"),
            *_anything("shuffle_buffer_size"),
        ),
        "Vocabulary": _anything("extra_ids"),
        "get_vocabulary": _anything("mixture_or_task_name"),
        "get_default_spm_path": (Row("path", "data.vocabulary.path"),),
        "pack_dataset": (Row("use_custom_ops", anything=True, note="mtf has its own packing"),),
        "maybe_print_dataset": _anything("should_print"),
        "decode_from_file": (
            Row("input_filename", "files"),
            Row("output_filename", "mesh.output", "its folder: `output_dir`"),
            *_anything("padded_input"),
        ),
        "infer_model": (Row("decode_fn", parts={"decode_from_file": "decode_from_file"}),),
        "init_checkpoint_variable_mapping": _fixed(mapping_fn=None),
        "tpu_estimator_model_fn": (
            *_fixed(init_variable_filter="", outer_batch_size=1),
            *_anything("hierarchical_tiling_spec", "tpu_summaries", "model_info_file"),
            *_anything("init_checkpoint"),
        ),
        "rewrite_stack_variables": _anything("max_combined_variable_size"),
        "SimdMeshImpl": _anything("allreduce_in_bfloat16_max_group_size"),
        "unit_scaling_convention": _fixed(value=False),
        "VarianceScalingInitializer": _fixed(distribution="normal", mode="fan_in", scale=1.0),
        "VocabEmbedding": _fixed(scale_variable_like_classifier_weights=False),
        "unsupervised": (
            Row(
                "preprocessors",
                fixed=(None, []),
                note="`data.objective` of `c4_v220_unsupervised`; other tasks have their own",
            ),
        ),
        "seqio.SentencePieceVocabulary": (
            Row("sentencepiece_model_file", "data.vocabulary.path", convert=_path),
            *_anything("extra_ids"),
        ),
    }.items()
}
# Configurables that are called once for the encoder and once for the decoder.
STACKED = (
    *("make_layer_stack", "Unitransformer", "DenseReluDense", "SelfAttention", "LayerStack"),
    *("EncDecAttention", "sublayer_dropout", "sublayer_rms_norm", "sublayer_legacy_dropout"),
    *("sublayer_legacy_rms_norm", "sublayer_legacy_final_rms_norm"),
)
# The preprocessing of T5's unsupervised tasks, of which `mtf.gin.objectives` makes objectives.
_PREPROCESSING = (
    *("denoise", "random_spans_helper", "random_spans_noise_mask", "random_spans_targets_length"),
    *("random_spans_tokens_length", "noise_span_to_unique_sentinel", "iid_noise_mask"),
    *("nonnoise_span_to_unique_sentinel", "reduce_concat_tokens", "select_random_chunk"),
    *("split_tokens", "split_tokens_to_inputs_length", "split_tokens_to_targets_length"),
    *("noise_token_to_sentinel", "noise_token_to_random_token_or_sentinel"),
    *("random_prefix_noise_mask", "drop_noise_tokens", "drop_nonnoise_tokens"),
    "permute_noise_tokens",
)
_RATES = ("rate_num_examples", "rate_unsupervised")
# Configurables without an effect here; `MtfModel` is the Python interface.
IGNORED = (*_PREPROCESSING, *_RATES, "get_sentencepiece_model_path", "MtfModel")

_UTILS = "mesh_tensorflow.transformer.utils"
_LAYERS_MODULE = "mesh_tensorflow.transformer.transformer_layers"
# Schedules, of which a run uses those that `run.learning_rate_schedule` names.
SCHEDULES = (
    *("constant_learning_rate", "learning_rate_schedule_noam", "truncated_rsqrt"),
    *("linear_decay", "constant"),
)
_MODULES = {
    _UTILS: (
        *("run", "tpu_mesh_shape", "serialize_num_microbatches", "get_variable_dtype"),
        *("decode_from_file", "infer_model", "tpu_estimator_model_fn"),
        *("init_checkpoint_variable_mapping",),
    ),
    _LAYERS_MODULE: ("DenseReluDense", "SelfAttention", "EncDecAttention", "LocalSelfAttention"),
    "mesh_tensorflow.transformer.learning_rate_schedules": (*SCHEDULES, "product_learning_rate"),
    "mesh_tensorflow.optimize": ("AdafactorOptimizer", "adafactor_decay_rate_pow"),
    "t5.models.mesh_transformer": (
        *("mesh_train_dataset_fn", "mesh_eval_dataset_fn", "tsv_dataset_fn", "get_vocabulary"),
    ),
    "mesh_tensorflow.transformer.dataset": ("pack_dataset", "maybe_print_dataset"),
    "t5.data.vocabularies": ("Vocabulary",),
    "mesh_tensorflow.tpu_variables": ("rewrite_stack_variables",),
    "mesh_tensorflow.simd_mesh_impl": ("SimdMeshImpl",),
    "mesh_tensorflow.layers": ("unit_scaling_convention", "VarianceScalingInitializer"),
    "t5.data.preprocessors": ("unsupervised", *_PREPROCESSING),
    "t5.data.utils": (*_RATES, "get_default_spm_path"),
}


def mesh_configurables() -> dict[str, str]:
    """Returns the full name of each configurable of Mesh TensorFlow → its canonical name."""
    placed = {name: module for module, names in _MODULES.items() for name in names}
    names = [*MESH, *IGNORED]
    return {
        f"{placed.get(name, 'mesh_tensorflow.transformer.transformer')}.{name}": name
        for name in names
    }
