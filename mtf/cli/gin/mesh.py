"""Translates training and rank evaluation jobs of `t5_mesh_transformer` (Mesh TensorFlow's T5).

Supports the commands of T0 and the operative configs of T5, mT5, LM-adapted T5 and T0. The table is
based on the signatures and gin files in mesh_tensorflow/transformer/ and in T5's t5/models/.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import fiddle as fdl

from mtf.base.errors import UserError
from mtf.builders import model, vocabulary
from mtf.cli.gin.jobs import Command, Remark, evaluation, train
from mtf.cli.gin.reading import Bindings
from mtf.cli.gin.rows import Row, Section, as_tuple, default_of, ignored, must, only
from mtf.cli.gin.t5x_table import NO_SEED, T5X_NAMES, seed
from mtf.cli.gin.walking import Walk
from mtf.jobs import Evaluate, Train

# The default bindings of t5_mesh_transformer.
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
utils.run.sequence_length = {"inputs": 512, "targets": 512}
utils.run.learning_rate_schedule = @learning_rate_schedule_noam
learning_rate_schedule_noam.linear_decay_fraction = 0.1
linear_decay.steps_or_fraction = 0.1
utils.tpu_mesh_shape.model_parallelism = 1
utils.serialize_num_microbatches.tokens_per_microbatch_per_replica = 2048
utils.get_variable_dtype.activation_dtype = "bfloat16"
tpu_estimator_model_fn.model_info_file = %model_info  # a macro that T0's commands set
"""
_LAYERS = ("SelfAttention", "EncDecAttention", "DenseReluDense")
# Configurables that both the encoder and the decoder use.
_STACKED = ("make_layer_stack", "Unitransformer", "LayerStack", *_LAYERS)
_RSQRT = ("learning_rate_schedule_noam", "truncated_rsqrt")
_SCHEDULES = ("constant_learning_rate", "linear_decay", *_RSQRT)
_REFERRED = ("AdafactorOptimizer", "mesh_train_dataset_fn", "mesh_eval_dataset_fn")
# Configurables of T0's commands that have no effect in mtf.
_IGNORED = ("get_sentencepiece_model_path", "get_vocabulary", "pack_dataset")
_TRANSFORMER = ("utils", "transformer", "transformer_layers", "learning_rate_schedules")
_MODULES = (
    *(f"mesh_tensorflow.transformer.{name}" for name in _TRANSFORMER),
    *("mesh_tensorflow.optimize", "t5.models.mesh_transformer", "t5.data.preprocessors"),
    *("t5.data.utils", "mesh_tensorflow.transformer.dataset"),
)
_MICROBATCHES = "serialize_num_microbatches"
_SHARED_SIZES = ("emb_dim", "num_heads", "head_dim", "mlp_dim", "mlp_activations")
_ADAFACTOR = (
    *("clipping_threshold", "epsilon1", "epsilon2", "factored", "min_dim_size_to_factor"),
    "multiply_by_parameter_scale",
)
_PATHS = (vocabulary.T5_PATH, vocabulary.MT5_PATH)
_LOSS = "model.loss_normalizing_factor"
_TOKENS = "NUM_TOTAL_TARGET_TOKENS"
_NET = "model.network."
_DROPPED = "model.network.dropout_rate"
_RATE = "optimizer.learning_rate."
_DROPOUT = "mtf uses the same dropout rate everywhere"
_RAMP = "mtf has no linear decay to 0 at the end of a run; to train without it, set this to 0"


def _network(configurable: str, **values: Any) -> tuple[Row, ...]:
    """Returns a row for each parameter in `values`; mtf supports only the given value of each."""
    parameters = {f"{configurable}.{name}": (value,) for name, value in values.items()}
    return tuple(Row(name, fixed=values, refused=True) for name, values in parameters.items())


def _names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else as_tuple(value)


def _cores(value: Any) -> int:
    """Returns the number of TPU cores for "v3-512" (cores) or "16x16" (chips), otherwise 1."""
    sides = str(value or "1").rpartition("-")[2].split("x")
    if not all(side.isdigit() for side in sides):
        return 1
    return math.prod(map(int, sides)) * (2 if len(sides) > 1 else 1)


_ROWS = (
    Row("run.mode", "mesh.mode", "`score_eval` becomes `Evaluate`", type=str),
    Row("run.train_steps", "train_steps"),
    Row("run.batch_size", "mesh.batch_size", "by the longer length", type=int | tuple[str, int]),
    Row("run.sequence_length", "data.task_feature_lengths", type=dict[str, int]),
    Row("run.learning_rate_schedule", "mesh.schedule", convert=lambda value: value, type=Any),
    Row("run.optimizer", parts={"AdafactorOptimizer": "AdafactorOptimizer"}),
    Row("run.save_checkpoints_steps", "checkpoint.save.period", default=5000),
    Row("run.keep_checkpoint_max", "checkpoint.save.keep", "0 keeps all", default_of(None)),
    Row("run.init_checkpoint", "checkpoint.restore.path", "", default_of(None), type=str | None),
    Row("run.dataset_split", "mesh.split", default="train", type=str),
    Row(
        "run.eval_checkpoint_step",
        "checkpoint_steps",
        "",
        lambda n: None if n == -1 else as_tuple(n),
    ),
    Row("run.train_dataset_fn", parts={"mesh_train_dataset_fn": "mesh_train_dataset_fn"}),
    *_network("run", model_type="bitransformer", variable_filter=None, ensemble_inputs=None),
    *_network("run", total_run_steps=None),
    only("run.mesh_shape", "@tpu_mesh_shape", note="the mesh of `partitioner` is used"),
    Row("tpu_mesh_shape.tpu_topology", "mesh.cores", "number of cores", _cores, type=int),
    Row("tpu_mesh_shape.model_parallelism", "partitioner.num_partitions"),
    only("tpu_mesh_shape.ensemble_parallelism", None),
    Row(f"{_MICROBATCHES}.tokens_per_microbatch_per_replica", "mesh.tokens", type=int | None),
    Row("get_variable_dtype.activation_dtype", _NET + "dtype", "float32 without `--tpu`"),
    Row("make_layer_stack.num_layers", "mesh.num_layers", "layers of each stack", type=int),
    Row("make_layer_stack.layers", parts={name: name for name in _LAYERS}),
    Row("Unitransformer.d_model", _NET + "emb_dim"),
    Row("Unitransformer.shared_embedding_and_softmax_weights", _NET + "logits_via_embedding"),
    *(Row(f"Unitransformer.{name}", f"model.{name}") for name in ("label_smoothing", "z_loss")),
    Row("Unitransformer.loss_denominator", _LOSS, "", default_of(_TOKENS), default=_TOKENS),
    *_network("Unitransformer", positional_embedding=False, sinusoid_positional_embedding=False),
    *_network("Unitransformer", ensemble=None, input_full_attention=False, vocab_divisor=128),
    *_network("Unitransformer", loss_fn=None, loss_on_targets_only=False, token_dropout_rate=0.0),
    Row("DenseReluDense.hidden_size", _NET + "mlp_dim"),
    Row("DenseReluDense.activation", _NET + "mlp_activations", "", _names, default=("relu",)),
    Row("DenseReluDense.dropout_rate", _DROPPED),
    *_network("DenseReluDense", use_bias=False),
    Row("SelfAttention.num_heads", _NET + "num_heads"),
    Row("SelfAttention.key_value_size", _NET + "head_dim"),
    Row("SelfAttention.relative_attention_num_buckets", _NET + "relative_attention_num_buckets"),
    *_network("SelfAttention", relative_attention_type="bias_shared", num_memory_heads=0),
    *_network("SelfAttention", shared_kv=False, fold_scaling_into_initializer=True),
    *_network("SelfAttention", attention_func=None),
    Row("SelfAttention.attention_kwargs", fixed=(None, {}), refused=True),
    *_network("EncDecAttention", relative_attention_type=None),
    Row("LayerStack.norm_epsilon", fixed=(None, 1e-6), refused=True),
    Row(
        "LayerStack.recompute_grads",
        _NET + "remat_policy",
        'True means "full"',
        lambda v: "full" if v else "none",
    ),
    *_network("Bitransformer", shared_embedding=True),
    Row("AdafactorOptimizer.beta1", "optimizer.beta1", "0 means None", default_of(None)),
    Row("AdafactorOptimizer.decay_rate", "optimizer.decay_rate", "None means 0.8", default_of(0.8)),
    *(Row(f"AdafactorOptimizer.{name}", f"optimizer.{name}") for name in _ADAFACTOR),
    Row("adafactor_decay_rate_pow.offset", "optimizer.step_offset"),
    Row("adafactor_decay_rate_pow.exponent", "optimizer.decay_rate"),
    Row("constant_learning_rate.learning_rate", _RATE + "base_learning_rate"),
    Row("learning_rate_schedule_noam.multiplier", _RATE + "base_learning_rate"),
    *(Row(f"{n}.warmup_steps", _RATE + "warmup_steps", "", int, default=10_000) for n in _RSQRT),
    must("learning_rate_schedule_noam.linear_decay_fraction", 0, 0.0, note=_RAMP),
    must("linear_decay.steps_or_fraction", 0, 0.0, note=_RAMP),
    *_network("learning_rate_schedule_noam", offset=0),
    Row("mesh_train_dataset_fn.use_cached", "data.use_cached", "see --additional_task_cache_dirs"),
    Row("mesh_train_dataset_fn.seed", "data.seed", NO_SEED, seed),
    *(Row(f"mesh_train_dataset_fn.{name}", f"data.{name}") for name in ("pack", "shuffle")),
    *(Row(f"{name}.mixture_or_task_name", "data.mixture_or_task_name") for name in _REFERRED[1:]),
    only("mesh_eval_dataset_fn.use_cached", False, note="set `data.cache_dir` to a token cache"),
    only("mesh_eval_dataset_fn.num_eval_examples", None, note="mtf always evaluates all examples"),
    must("seqio.SentencePieceVocabulary.sentencepiece_model_file", f"@{_IGNORED[0]}", *_PATHS),
    *ignored(
        "run.layout_rules run.skip_seen_data run.predict_fn run.vocabulary run.eval_dataset_fn "
        "run.autostack run.iterations_per_loop run.eval_summary_dir run.mesh_devices "
        "run.perplexity_eval_steps run.output_eval_examples run.export_checkpoint_step "
        "run.export_path run.checkpoint_input_pipeline run.seen_data_init_step "
        "run.train_model_fn make_layer_stack.block_scope Unitransformer.max_length "
        "SelfAttention.combine_dims SelfAttention.keep_query_heads_dims "
        "LayerStack.sublayers_final LayerStack.sublayers_initial "
        "LayerStack.sublayers_per_layer mesh_eval_dataset_fn.seed "
        "mesh_eval_dataset_fn.pack seqio.SentencePieceVocabulary.extra_ids "
        "get_variable_dtype.slice_dtype get_variable_dtype.master_dtype"
    ),
    *(
        Row(f"{n}.dropout_rate", None, _DROPOUT, None, (None,), equals=_DROPPED, refused=True)
        for n in ("SelfAttention", "LayerStack")
    ),
    Row("unsupervised.preprocessors", note="each task has its own; see `data.objective`"),
)


def _sections() -> dict[str, Section]:
    groups: dict[str, list[Row]] = {}
    for row in _ROWS:
        name, _, parameter = row.parameter.rpartition(".")
        groups.setdefault(name, []).append(dataclasses.replace(row, parameter=parameter))
    return {name: Section(name, rows) for name, rows in groups.items()}


MESH = _sections()  # configurable → section with the rows for its parameters
MESH_NAMES = {f"{module}.{name}": name for module in _MODULES for name in (*MESH, *_IGNORED)}


def is_mesh(bindings: Bindings) -> bool:
    """Returns whether the gin files are for t5_mesh_transformer."""
    only_mesh = MESH.keys() - T5X_NAMES.values()
    return any(configurable in only_mesh for _, configurable, _ in bindings.parameters)


def translate(bindings: Bindings, command: Command, remark: Remark) -> tuple[Walk, fdl.Config]:
    """Returns the settings and the job's expression; raises UserError if mtf has no equivalent."""
    bound = bindings.of("run").get("mode")
    mode = "train" if bound is None else Walk(bindings, {}, Train).resolve(bound.value, bound)
    if mode not in ("train", "score_eval"):
        raise UserError(f"run.mode = {mode!r} has no equivalent; expected train or score_eval.")
    walk = Walk(bindings, MESH, Train if mode == "train" else Evaluate)
    settings = walk.settings
    # Parameters in the table never refer to configurables that are not in the table.
    others = {c for (_, c, _), each in bindings.parameters.items() if not each.on_command_line}
    walk.ignore(*_IGNORED, *(others - MESH.keys()))
    encoder, decoder = _stack(walk, "encoder"), _stack(walk, "decoder")
    if differs := [name for name in _SHARED_SIZES if encoder[name] != decoder[name]]:
        raise UserError(f"The encoder and decoder differ in {differs}; mtf requires equal values.")
    for name in MESH:
        if bindings.of(name) and name not in (*_STACKED, *_SCHEDULES, *_REFERRED):
            walk.section(name, name)
    if mode == "train":
        walk.ignore("mesh_eval_dataset_fn")
        _schedule(walk)
    else:
        walk.ignore(*_SCHEDULES, "mesh_train_dataset_fn")
        walk.section("mesh_eval_dataset_fn", "mesh_eval_dataset_fn")
    walk.finish(command.skip_unknown)
    if mode == "train" and settings.get("train_steps") is None:
        raise UserError(
            "run.train_steps is not bound. Set it with --gin_param='run.train_steps = N'."
        )
    mixture = settings.get("data.mixture_or_task_name")
    if mixture is None:
        raise UserError("No mixture is bound. Set one with --gin_param=\"MIXTURE_NAME = 'NAME'\".")
    objective = bindings.of("unsupervised").get("preprocessors")
    if objective is not None and mixture.endswith("unsupervised"):
        raise UserError(
            f"{objective.name} ({objective.where}): mtf does not take objectives from gin files. "
            "Set MIXTURE_NAME to c4_v220_span_corruption, and data.objective of the recipe."
        )
    mt5 = mixture.startswith(("mt5", "mc4"))
    mt5 = mt5 or "/mt5/" in (settings.get("checkpoint.restore.path") or "")
    settings |= {
        "data.vocabulary.path": vocabulary.MT5_PATH if mt5 else vocabulary.T5_PATH,
        "model.network.vocab_size": model.MT5_VOCAB_SIZE if mt5 else model.T5_VOCAB_SIZE,
    }
    if not command.tpu:
        settings["model.network.dtype"] = "float32"
    _batches(settings)
    if mode == "train":
        settings |= {"model_dir": command.model_dir, "data.split": settings["mesh.split"]}
        return walk, train(settings, command, remark)
    settings |= {"checkpoint": command.model_dir, "data.eval_split": settings["mesh.split"]}
    return walk, evaluation(settings, command, remark)


def _stack(walk: Walk, scope: str) -> dict[str, Any]:
    """Translates the parameters of the encoder or the decoder and returns the stack's sizes."""
    for name in _STACKED:
        walk.section(name, name, scope)
    settings = walk.settings
    settings[f"{_NET}num_{scope}_layers"] = settings.get("mesh.num_layers")
    return {name: settings.get(_NET + name) for name in _SHARED_SIZES}


def _schedule(walk: Walk) -> None:
    """Adds the settings for a schedule, which is one function or a product of several functions."""
    settings = walk.settings
    given = settings.get("mesh.schedule")
    parts = given if isinstance(given, list | tuple) else [given]
    names = [getattr(part, "configurable", part) for part in parts]
    for name in names:
        if name not in _SCHEDULES:
            raise UserError(f"run.learning_rate_schedule = {given!r} has no equivalent in mtf.")
        walk.section(name, name)
    settings.setdefault(_RATE + "base_learning_rate", 1.0)
    rsqrt = bool({*names} & {*_RSQRT})
    settings[_RATE + "factors"] = "constant * rsqrt_decay" if rsqrt else "constant"


def _batches(settings: dict[str, Any]) -> None:
    """Computes the batch size and the number of microbatches as Mesh TensorFlow does."""
    lengths = settings["data.task_feature_lengths"]
    if not lengths or min(lengths.values()) < 1:
        raise UserError(f"run.sequence_length = {lengths!r}: expected lengths of at least 1.")
    length = max(lengths.values())
    partitions = settings.get("partitioner.num_partitions") or 1
    replicas = max(1, settings.get("mesh.cores", 1) // partitions)
    given = settings.get("mesh.batch_size", ("tokens_per_replica", 2048))
    kind, number = given if isinstance(given, list | tuple) else ("sequences_per_batch", given)
    sequences = {
        "tokens_per_batch": number // length,
        "tokens_per_replica": max(1, number // length) * replicas,
        "sequences_per_batch": number,
        "sequences_per_replica": number * replicas,
    }
    if kind not in sequences:
        raise UserError(f"run.batch_size = {given!r}: expected one of {', '.join(sequences)}.")
    settings["batch_size"] = sequences[kind]
    if settings.get("mesh.tokens") is not None:
        per_replica = max(1, sequences[kind] // replicas)
        size = max(1, settings["mesh.tokens"] // length)
        while per_replica % size:
            size -= 1
        settings["trainer.num_microbatches"] = per_replica // size
