"""Small gin files with the names and values of T5X and of Mesh TensorFlow's T5."""

from __future__ import annotations

from pathlib import Path

from mtf.builders import model

_BASE = """
from __gin__ import dynamic_registration

import seqio
from t5x import adafactor
from t5x import models
from {network} import network

Z_LOSS = 0.0001
LABEL_SMOOTHING = 0.0
LOSS_NORMALIZING_FACTOR = None
DROPOUT_RATE = %gin.REQUIRED
VOCABULARY = @seqio.SentencePieceVocabulary()
OPTIMIZER = @adafactor.Adafactor()
MODEL = @models.EncoderDecoderModel()

adafactor.Adafactor:
  decay_rate = 0.8
  step_offset = 0
  logical_factor_rules = @adafactor.standard_logical_factor_rules()
models.EncoderDecoderModel:
  module = @network.Transformer()
  input_vocabulary = %VOCABULARY
  output_vocabulary = %VOCABULARY
  optimizer_def = %OPTIMIZER
  z_loss = %Z_LOSS
  label_smoothing = %LABEL_SMOOTHING
  loss_normalizing_factor = %LOSS_NORMALIZING_FACTOR
network.Transformer.config = @network.T5Config()
network.T5Config:
  dtype = 'bfloat16'
  vocab_size = {vocab_size}
  mlp_activations = ('gelu', 'linear')
  dropout_rate = %DROPOUT_RATE
  emb_dim = {emb_dim}
  num_heads = {num_heads}
  num_encoder_layers = {num_encoder_layers}
  num_decoder_layers = {num_decoder_layers}
  head_dim = {head_dim}
  mlp_dim = {mlp_dim}
{extra}
"""
_DATA = """
{scope}utils.DatasetConfig:
  mixture_or_task_name = %MIXTURE_OR_TASK_NAME
  task_feature_lengths = {lengths}
  split = '{split}'
  batch_size = {batch_size}
  shuffle = {shuffle}
  seed = {seed}
  use_cached = {cached}
  pack = {pack}
  module = %MIXTURE_OR_TASK_MODULE
"""
_TRAIN = """
from __gin__ import dynamic_registration

import __main__ as train_script
import seqio
from t5x import gin_utils
from t5x import partitioning
from t5x import trainer
from t5x import utils

MODEL_DIR = %gin.REQUIRED
MIXTURE_OR_TASK_NAME = %gin.REQUIRED
TASK_FEATURE_LENGTHS = %gin.REQUIRED
TRAIN_STEPS = %gin.REQUIRED
USE_CACHED_TASKS = True
BATCH_SIZE = 128
MIXTURE_OR_TASK_MODULE = None
RANDOM_SEED = None
TRAIN_STEPS_RELATIVE = None
USE_HARDWARE_RNG = False

train_script.train:
  model = %MODEL
  model_dir = %MODEL_DIR
  train_dataset_cfg = @train/utils.DatasetConfig()
  train_eval_dataset_cfg = @train_eval/utils.DatasetConfig()
  infer_eval_dataset_cfg = {infer_eval}
  checkpoint_cfg = @utils.CheckpointConfig()
  partitioner = @partitioning.PjitPartitioner()
  trainer_cls = @trainer.Trainer
  total_steps = %TRAIN_STEPS
  relative_steps = %TRAIN_STEPS_RELATIVE
  eval_steps = 20
  eval_period = 1000
  random_seed = %RANDOM_SEED
  use_hardware_rng = %USE_HARDWARE_RNG
  summarize_config_fn = @gin_utils.summarize_gin_config
partitioning.PjitPartitioner:
  num_partitions = 1
  model_parallel_submesh = None
  logical_axis_rules = @partitioning.standard_logical_axis_rules()
utils.CheckpointConfig:
  restore = @utils.RestoreCheckpointConfig()
  save = @utils.SaveCheckpointConfig()
utils.SaveCheckpointConfig:
  period = {period}
  dtype = 'float32'
  keep = None
  save_dataset = False
trainer.Trainer:
  num_microbatches = None
  learning_rate_fn = @utils.create_learning_rate_scheduler()
{own}
"""
_PRETRAIN = """
utils.RestoreCheckpointConfig.path = []
utils.create_learning_rate_scheduler:
  factors = 'constant * rsqrt_decay'
  base_learning_rate = 1.0
  warmup_steps = 10000
"""
_FINETUNE = """
INITIAL_CHECKPOINT_PATH = %gin.REQUIRED
DROPOUT_RATE = 0.1
EVALUATOR_NUM_EXAMPLES = None
train_script.train.inference_evaluator_cls = @seqio.Evaluator
seqio.Evaluator:
  logger_cls = [@seqio.PyLoggingLogger, @seqio.TensorBoardLogger, @seqio.JSONLogger]
  num_examples = %EVALUATOR_NUM_EXAMPLES
  use_memory_cache = True
seqio.JSONLogger.write_n_results = None
utils.RestoreCheckpointConfig:
  path = %INITIAL_CHECKPOINT_PATH
  mode = 'specific'
  dtype = 'float32'
utils.create_learning_rate_scheduler:
  factors = 'constant'
  base_learning_rate = 0.001
  warmup_steps = 1000
"""
_JOB = """
from __gin__ import dynamic_registration

import __main__ as {module}
import seqio
from t5x import partitioning
from t5x import utils

MIXTURE_OR_TASK_NAME = %gin.REQUIRED
CHECKPOINT_PATH = %gin.REQUIRED
OUTPUT_DIR = %gin.REQUIRED
TASK_FEATURE_LENGTHS = None
MIXTURE_OR_TASK_MODULE = None
{module}.{job}:
  model = %MODEL
  dataset_cfg = @utils.DatasetConfig()
  partitioner = @partitioning.PjitPartitioner()
  restore_checkpoint_cfg = @utils.RestoreCheckpointConfig()
  output_dir = %OUTPUT_DIR
{own}
partitioning.PjitPartitioner:
  num_partitions = 1
  logical_axis_rules = @partitioning.standard_logical_axis_rules()
utils.RestoreCheckpointConfig:
  path = %CHECKPOINT_PATH
  mode = 'specific'
"""

_PIECES = 'seqio.SentencePieceVocabulary.sentencepiece_model_file = "gs://t5-data/vocabs/{}"'
_OF_T5 = _PIECES.format("cc_all.32000.100extra/sentencepiece.model")
_OF_MT5 = _PIECES.format("mc4.250000.100extra/sentencepiece.model")
# Folder below t5x/examples → network, rows of the embedding, other bindings.
_FAMILIES = {
    "t5/t5_1_1": ("t5", 32128, _OF_T5),
    "t5/mt5": ("t5", 250112, _OF_MT5),
    "scalable_t5/t5_1_1": (
        "scalable_t5",
        32128,
        f"  scan_layers = True\n  remat_policy = 'minimal'\n{_OF_T5}",
    ),
}


def write_t5x(root: Path) -> Path:
    """Writes t5x/ with the gin files of its models and runs; returns `root`."""
    for folder, (network, vocab_size, extra) in _FAMILIES.items():
        for size, values in model.T5_1_1_SIZES.items():
            text = _BASE.format(
                **{"network": f"t5x.examples.{network}", "vocab_size": vocab_size, "extra": extra},
                **values._asdict(),
            )
            _write(root / f"t5x/examples/{folder}/{size}.gin", text)
    shared = {"batch_size": "%BATCH_SIZE", "cached": "%USE_CACHED_TASKS"}
    lengths = "%TASK_FEATURE_LENGTHS"
    both = _data("train/", lengths, "train", True, None, True, **shared)
    both += _data("train_eval/", lengths, "validation", False, 42, True, **shared)
    decoded = _data("infer_eval/", "None", "validation", False, 42, False, **shared)
    own = {"infer_eval": "None", "period": 1000, "own": both + _PRETRAIN}
    _write(root / "t5x/configs/runs/pretrain.gin", _TRAIN.format(**own))
    own = {
        "infer_eval": "@infer_eval/utils.DatasetConfig()",
        "period": 5000,
        "own": both + decoded + _FINETUNE,
    }
    _write(root / "t5x/configs/runs/finetune.gin", _TRAIN.format(**own))
    test = _data("", lengths, "test", False, 42, False, batch_size="32", cached="False")
    own = {
        "module": "eval_script",
        "job": "evaluate",
        "own": "  inference_evaluator_cls = @seqio.Evaluator\n"
        "seqio.Evaluator.num_examples = None\n",
    }
    _write(root / "t5x/configs/runs/eval.gin", _JOB.format(**own) + test)
    own = {
        "module": "infer_script",
        "job": "infer",
        "own": "  mode = 'predict'\n  checkpoint_period = 100\n  shard_id = 0\n  num_shards = 1\n"
        "utils.RestoreCheckpointConfig.dtype = 'bfloat16'\n",
    }
    _write(root / "t5x/configs/runs/infer.gin", _JOB.format(**own) + test)
    return root


def _data(
    scope: str,
    lengths: str,
    split: str,
    shuffle: bool,
    seed: int | None,
    pack: bool,
    batch_size: str,
    cached: str,
) -> str:
    return _DATA.format(**locals())


OPERATIVE = """
import mesh_tensorflow.optimize
import mesh_tensorflow.transformer.utils
import t5.models.mesh_transformer

# Macros:
# ======
d_ff = {mlp_dim}
d_kv = {head_dim}
d_model = {emb_dim}
dropout_rate = 0.1
init_checkpoint = 'gs://t5-data/pretrained_models/t5.1.1.lm100k.{size}/model.ckpt-1100000'
num_heads = {num_heads}
num_layers = {num_encoder_layers}
tokens_per_batch = 65536
model_info = ''

AdafactorOptimizer.beta1 = 0.0
AdafactorOptimizer.decay_rate = None
AdafactorOptimizer.epsilon1 = 1e-30
Bitransformer.shared_embedding = True
Bitransformer.decode.max_decode_length = 128
decoder/DenseReluDense.activation = ['gelu', 'linear']
decoder/DenseReluDense.dropout_rate = %dropout_rate
decoder/DenseReluDense.hidden_size = %d_ff
encoder/DenseReluDense.activation = ['gelu', 'linear']
encoder/DenseReluDense.dropout_rate = %dropout_rate
encoder/DenseReluDense.hidden_size = %d_ff
decoder/EncDecAttention.relative_attention_type = None
get_variable_dtype.activation_dtype = 'bfloat16'
decoder/make_layer_stack.layers = \\
    [@mesh_tensorflow.transformer.transformer_layers.SelfAttention,
     @mesh_tensorflow.transformer.transformer_layers.EncDecAttention,
     @mesh_tensorflow.transformer.transformer_layers.DenseReluDense]
decoder/make_layer_stack.num_layers = %num_layers
encoder/make_layer_stack.num_layers = %num_layers
linear_decay.steps_or_fraction = 0.1
pack_dataset.use_custom_ops = True
run.batch_size = ('tokens_per_batch', %tokens_per_batch)
run.init_checkpoint = %init_checkpoint
run.iterations_per_loop = 100
run.layout_rules = 'batch:batch,d_ff:model,heads:model,vocab:model'
run.learning_rate_schedule = \\
    [@learning_rate_schedules.truncated_rsqrt,
     @learning_rate_schedules.linear_decay]
run.model_type = 'bitransformer'
run.optimizer = @optimize.AdafactorOptimizer
run.save_checkpoints_steps = 5000
encoder/SelfAttention.relative_attention_type = 'bias_shared'
tpu_estimator_model_fn.model_info_file = %model_info
decoder/Unitransformer.d_model = %d_model
decoder/Unitransformer.loss_denominator = None
decoder/Unitransformer.shared_embedding_and_softmax_weights = False
encoder/Unitransformer.d_model = %d_model
encoder/Unitransformer.shared_embedding_and_softmax_weights = False
"""
_MESH = {
    "dataset.gin": """
import t5.models.mesh_transformer
MIXTURE_NAME = 'glue_v002_proportional'
utils.run.train_dataset_fn = @t5.models.mesh_transformer.mesh_train_dataset_fn
mesh_train_dataset_fn.mixture_or_task_name = %MIXTURE_NAME
mesh_train_dataset_fn.use_cached = False
utils.run.vocabulary = @mesh_transformer.get_vocabulary()
mesh_transformer.get_vocabulary.mixture_or_task_name = %MIXTURE_NAME
""",
    "learning_rate_schedules/constant_0_001.gin": """
import mesh_tensorflow.transformer.learning_rate_schedules
run.learning_rate_schedule = @learning_rate_schedules.constant_learning_rate
learning_rate_schedules.constant_learning_rate.learning_rate = 0.001
""",
    "learning_rate_schedules/rsqrt_no_ramp_down.gin": """
utils.run.learning_rate_schedule = @learning_rate_schedules.learning_rate_schedule_noam
learning_rate_schedule_noam.linear_decay_fraction = 0.0
""",
    "models/t5.1.1.base.gin": """
utils.run.model_type = "bitransformer"
d_model = 768
num_layers = 12
d_ff = 2048
num_heads = 12
d_kv = 64
dropout_rate = 0.0
transformer.Unitransformer.positional_embedding = False
transformer_layers.SelfAttention.relative_attention_type = "bias_shared"
DenseReluDense.activation = ["gelu", "linear"]
Unitransformer.shared_embedding_and_softmax_weights = False
""",
    "models/t5.1.1.xxl.gin": """
include 'models/t5.1.1.base.gin'
d_model = 4096
num_layers = 24
d_ff = 10240
num_heads = 64
utils.tpu_mesh_shape.model_parallelism = 8
""",
    "eval.gin": """
eval_checkpoint_step = "all"
utils.run.mode = "eval"
utils.run.batch_size = ("tokens_per_replica", 32768)
utils.run.eval_dataset_fn = @t5.models.mesh_transformer.mesh_eval_dataset_fn
mesh_eval_dataset_fn.mixture_or_task_name = %MIXTURE_NAME
Bitransformer.decode.max_decode_length = 128
utils.run.eval_checkpoint_step = %eval_checkpoint_step
""",
    "score_eval.gin": 'include "eval.gin"\nutils.run.mode = "score_eval"\n',
}


def write_mesh(root: Path) -> Path:
    """Writes the gin files of Mesh TensorFlow's T5, and operative configs; returns their folder."""
    for name, text in _MESH.items():
        _write(root / name, text)
    for size, values in model.T5_1_1_SIZES.items():
        text = OPERATIVE.format(size=size, **values._asdict())
        _write(root / f"t5.1.1.lm100k.{size}.gin", text)
    return root


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
