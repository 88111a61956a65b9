"""T5X's gin files become recipes with the values that T5X would use."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import recipes
from mtf import config as config_lib
from tests.gin.helpers import COMMON, OWN, Gin, bindings, config_of, differences, values, write

SMALL = "t5x/examples/t5/t5_1_1/small.gin"
PRETRAIN = "t5x/configs/runs/pretrain.gin"
FINETUNE = "t5x/configs/runs/finetune.gin"
C4 = {
    "MIXTURE_OR_TASK_NAME": "'c4_v220_span_corruption'",
    "TASK_FEATURE_LENGTHS": "{'inputs': 512, 'targets': 114}",
    "TRAIN_STEPS": "100_000",
    "DROPOUT_RATE": "0.0",
    "BATCH_SIZE": "256",
}


def on_top(folder: Path, t5x: Path, *lines: str, run: str = PRETRAIN) -> Path:
    """A gin file that includes a model and a run, and has lines of its own."""
    includes = (f"include '{t5x / SMALL}'", f"include '{t5x / run}'")
    return write(folder, "mine.gin", *includes, *lines)


def test_pretraining_on_c4_is_the_recipe(gin: Gin, t5x: Path) -> None:
    status, out, err = gin(t5x / SMALL, t5x / PRETRAIN, *bindings(**C4))
    assert status == 0
    assert differences(config_of(out), recipes.t5_1_1_small_c4()) == set()
    # What has no equivalent is named in the recipe and on stderr, with its reason.
    for text in (out, err):
        assert (
            "train_script.train.random_seed = %RANDOM_SEED: the original draws a new seed" in text
        )


@pytest.mark.parametrize(
    "program",
    ["python -m t5x.train_unfragmented", "python3 -u {t5x}/t5x/train.py", "{t5x}/t5x/main.py"],
)
def test_pretraining_page(gin: Gin, t5x: Path, tmp_path: Path, program: str) -> None:
    """The page's command, in a checkout or with the program's path, after the shell's quoting."""
    lines = (f"{name} = {value}" for name, value in (C4 | {"TRAIN_STEPS": "10000"}).items())
    own = "t5x/examples/t5/t5_1_1/examples/small_c4_pretrain.gin"  # the page has another name
    write(tmp_path, own, f"include '{SMALL}'", f"include '{PRETRAIN}'", *lines)
    search = [] if "{t5x}" in program else [f"--gin_search_paths={t5x}"]
    config = gin.config(
        *program.format(t5x=t5x).split(),
        "--gin_file=t5x/examples/t5/t5_1_1/c4_pretrain_small.gin",
        *('--gin.MODEL_DIR="/tmp/pretrain-model/"', "--run_mode=train", "--alsologtostderr"),
        *search,
    )
    expected = recipes.t5_1_1_small_c4(train_steps=10_000)
    assert differences(config, expected) == {"model_dir"}
    status, out, err = gin(*program.format(t5x=t5x).split(), own, "--gin.BATCH_SIZES=1024", *search)
    assert (status, out) == (2, "") and "Did you mean BATCH_SIZE" in err
    _, out, _ = gin(f"{t5x}/t5x/scripts/xm_launch.py", own, "--model_dir=gs://b/run")
    assert 'model_dir="gs://b/run"' in out
    status, out, err = gin(own, "--gin.BATCH_SIZE/macro.value=1024", f"--gin_search_paths={t5x}")
    assert (status, values(config_of(out))["batch_size"]) == (0, "1024")


def test_finetuning_is_the_recipe(gin: Gin, t5x: Path) -> None:
    start = "'gs://t5-data/pretrained_models/t5x/t5_1_1_small/checkpoint_1000000'"
    config = gin.config(
        *(t5x / SMALL, t5x / FINETUNE),
        *bindings(
            MIXTURE_OR_TASK_NAME="'t0_train'",
            TASK_FEATURE_LENGTHS="{'inputs': 256, 'targets': 256}",
            TRAIN_STEPS="1_020_000",
            INITIAL_CHECKPOINT_PATH=start,
            LOSS_NORMALIZING_FACTOR="233472",
            USE_CACHED_TASKS="False",
        ),
    )
    assert differences(config, recipes.t5_1_1_finetune(mixture="t0_train")) == set()

    _, out, _ = gin(t5x / SMALL, t5x / PRETRAIN, *bindings(**C4, MODEL_DIR="'gs://b/run'"))
    assert 'model_dir="gs://b/run"' in out
    assert str(t5x / PRETRAIN) in out


def test_the_printed_recipe_has_the_command_as_a_shell_takes_it(gin: Gin, t5x: Path) -> None:
    arguments = [str(t5x / SMALL), str(t5x / PRETRAIN), *bindings(**C4), '--tpu=a b\'s "c" $d']
    _, out, _ = gin(*arguments)
    assert "\"--gin.MIXTURE_OR_TASK_NAME='c4_v220_span_corruption'\"" in out
    docstring = ast.get_docstring(ast.parse(out)) or ""
    command = docstring.partition("Made by: ")[2].partition("\n\n")[0]
    joined = command.replace("\\\n", " ")
    assert shlex.split(joined) == ["python", "-m", "mtf", "gin", *arguments]
    assert "\n\n\n\n" not in out
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize(("batch_size", "streams"), [("4", "4"), ("6", "2"), ("256", "8")])
def test_streams_divide_the_batch(gin: Gin, t5x: Path, batch_size: str, streams: str) -> None:
    own = C4 | {"BATCH_SIZE": batch_size}
    _, out, _ = gin(t5x / SMALL, t5x / PRETRAIN, *bindings(**own))
    assert values(config_of(out))["data.num_streams"] == streams


def test_seqio_caches(gin: Gin, t5x: Path) -> None:
    arguments = (t5x / SMALL, t5x / PRETRAIN, *bindings(**C4))
    _, out, _ = gin(*arguments, "--seqio_additional_cache_dirs=one,two")
    found = values(config_of(out))
    assert found["data.loader"] == "'seqio'"
    assert found["data.use_cached"] == "True"
    assert found["data.cache_dir"] == "('one', 'two')"


def test_modules_of_the_user(gin: Gin, t5x: Path, tmp_path: Path) -> None:
    lines = ("import t5.data.mixtures", "import my_tasks", "MIXTURE_OR_TASK_NAME = 'my_mixture'")
    mine = on_top(tmp_path, t5x, *lines)
    rest = bindings(**{name: C4[name] for name in C4 if name != "MIXTURE_OR_TASK_NAME"})
    assert values(config_of(gin(mine, *rest)[1]))["data.module"] == "'my_tasks'"
    _, out, _ = gin(mine, *rest, "--gin.MIXTURE_OR_TASK_MODULE='other'")
    assert values(config_of(out))["data.module"] == "'other'"
    _, out, _ = gin(t5x / SMALL, t5x / PRETRAIN, *bindings(**C4), "--module_import=my_tasks")
    assert "mtf defines c4_v220_span_corruption; the definition in my_tasks is not used" in out


ROMANIAN = (
    "include 't5x/examples/t5/mt5/base.gin'",
    "include 't5x/configs/runs/pretrain.gin'",
    "from t5x import utils",
    "import ro_tasks",
    "MIXTURE_OR_TASK_NAME = 'rlm_span_corruption_stream'",
    "TASK_FEATURE_LENGTHS = {'inputs': 512, 'targets': 256}",
    "TRAIN_STEPS = 2_000_000",
    "DROPOUT_RATE = 0.0",
    "PjitPartitioner.num_partitions = 2",
    "utils.RestoreCheckpointConfig:",
    "  path = 'gs://t5-data/pretrained_models/t5x/mt5_base/checkpoint_1000000'",
    "  mode = 'specific'",
    "  dtype = 'float32'",
    "utils.SaveCheckpointConfig:",
    "  period = 25000",
    "  keep = 3",
    "utils.create_learning_rate_scheduler.base_learning_rate = 0.4",
)


def test_romanian_files_are_the_recipe(gin: Gin, t5x: Path, tmp_path: Path) -> None:
    write(tmp_path / "ro", "ro_base.gin", *ROMANIAN)
    config = gin.config("ro_base.gin", f"--gin_search_paths={tmp_path / 'ro'},{t5x}")
    assert differences(config, recipes.ro_mt5_base()) == set()


def test_mt0_page(gin: Gin, t5x: Path) -> None:
    config = gin.config(
        *("python3", "t5x/train.py", "--tfds_data_dir=data"),
        *("--gin_file=t5x/examples/t5/mt5/xxl.gin", "--gin_file=t5x/configs/runs/finetune.gin"),
        *(f"--gin_search_paths={t5x}", "--module_import=multilingual_t0.tasks"),
        *bindings(
            MIXTURE_OR_TASK_NAME="'mt5_d4_gpt_sglue_train'",
            MIXTURE_OR_TASK_MODULE="'t5.data.mixtures'",
            TASK_FEATURE_LENGTHS="{'inputs': 256, 'targets': 256}",
            TRAIN_STEPS="1_125_000",
            USE_CACHED_TASKS="False",
            INITIAL_CHECKPOINT_PATH="'gs://t5-data/pretrained_models/mt5/xxl/model.ckpt-1000000'",
        ),
    )
    # The deviations that the recipe documents.
    assert differences(config, recipes.mt0_t0pp()) <= {
        *("model.network.remat_policy", "trainer.eval_period", "data.eval_split"),
        *("partitioner.num_partitions", "evaluator", "evaluator.period"),
        *("evaluator.num_examples", "evaluator.metrics", "evaluator.tasks", "evaluator.decoding"),
        *("partitioner.logical_axis_rules", "data.loader"),
    } | {path for path in values(recipes.mt0_t0pp()) if "logical_axis_rules" in path}


OPERATIVE = """
from __gin__ import dynamic_registration
import __main__ as train_script
import seqio
from t5x import adafactor
from t5x import models
from t5x import trainer
from t5x import utils
from t5x.examples.t5 import network
# Macros:
BATCH_SIZE = 8
OPTIMIZER = \\
    @adafactor.Adafactor()
VOCABULARY = @seqio.ByteVocabulary()
# Parameters:
adafactor.Adafactor.beta1 = 0.9
models.EncoderDecoderModel.input_vocabulary = %VOCABULARY
models.EncoderDecoderModel.module = @network.Transformer()
models.EncoderDecoderModel.optimizer_def = %OPTIMIZER
network.T5Config.vocab_size = 384
network.T5Config.emb_dim = 16
network.Transformer.config = @network.T5Config()
train/utils.DatasetConfig.batch_size = %BATCH_SIZE
train/utils.DatasetConfig.mixture_or_task_name = 't0_train'
train/utils.DatasetConfig.seed = 5
train/utils.DatasetConfig.task_feature_lengths = \\
    {'inputs': 64,
     'targets': 16}
train_script.train.checkpoint_cfg = @utils.CheckpointConfig()
train_script.train.model = @models.EncoderDecoderModel()
train_script.train.total_steps = 50
train_script.train.train_dataset_cfg = @train/utils.DatasetConfig()
train_script.train.trainer_cls = @trainer.Trainer
trainer.Trainer.learning_rate_fn = @utils.create_learning_rate_scheduler()
trainer.Trainer.num_microbatches = 4
utils.CheckpointConfig.save = @utils.SaveCheckpointConfig()
utils.SaveCheckpointConfig.period = 7
"""


def test_operative_config_of_a_finished_run(gin: Gin, t5x: Path, tmp_path: Path) -> None:
    """T5X's config.gin: all macros, then all parameters, with long lines broken."""
    status, out, err = gin(write(tmp_path, "config.gin", OPERATIVE))
    assert (status, err) == (0, err), err
    found = values(config_of(out))
    expected = {
        "optimizer.beta1": "0.9",
        "checkpoint.save.period": "7",
        "data.seed": "5",
        "train_steps": "50",
        "batch_size": "8",
        "trainer.num_microbatches": "4",
        # Not bound, and T5X's defaults are not mtf's.
        "model.z_loss": "0.0",
        "model.network.num_encoder_layers": "6",
        "model.network.mlp_dim": "2048",
        "model.network.mlp_activations": "('relu',)",
        "model.network.dtype": "'float32'",
        "optimizer.learning_rate.base_learning_rate": "0.5",
    }
    assert {path: found[path] for path in expected} == expected


OVERRIDES = {
    "train/utils.DatasetConfig.batch_size=64": ("batch_size", "64"),
    "train/DatasetConfig.shuffle=False": ("data.shuffle", "False"),
    "train.eval_period=0": ("trainer.eval_period", "None"),
    "Trainer.num_microbatches=8": ("trainer.num_microbatches", "8"),
    "PjitPartitioner.num_partitions=4": ("partitioner.num_partitions", "4"),
    "TRAIN_STEPS_RELATIVE=500": ("train_steps", "1000500"),
    "utils.SaveCheckpointConfig.keep=2": ("checkpoint.save.keep", "2"),
    "utils.SaveCheckpointConfig.dtype='bfloat16'": ("checkpoint.save.dtype", "'bfloat16'"),
    "train.random_seed=7": ("random_seed", "7"),
    "adafactor.Adafactor.factored=False": ("optimizer.factored", "False"),
    "T5Config.mlp_activations=['relu']": ("model.network.mlp_activations", "('relu',)"),
    "LABEL_SMOOTHING=0.1": ("model.label_smoothing", "0.1"),
    "predict_batch_with_aux.num_decodes=4": ("evaluator.decoding.num_beams", "4"),
    "EVALUATOR_NUM_EXAMPLES=10": ("evaluator.num_examples", "10"),
}


def test_overrides_of_the_command_line(gin: Gin, t5x: Path) -> None:
    start = "'gs://t5-data/pretrained_models/t5x/t5_1_1_small/checkpoint_1000000'"
    common = bindings(**COMMON, **(OWN["finetune"] | {"INITIAL_CHECKPOINT_PATH": start}))
    overrides = [f"--gin.{binding}" for binding in OVERRIDES]
    config = gin.config(t5x / SMALL, t5x / FINETUNE, *common, *overrides)
    found, expected = values(config), dict(OVERRIDES.values())
    assert {path: found[path] for path in expected} == expected


def test_later_bindings_win_in_files_includes_and_scopes(
    gin: Gin, t5x: Path, tmp_path: Path
) -> None:
    mine = write(
        tmp_path,
        "mine.gin",
        "BATCH_SIZE = 1  # the included file defines it again",
        f"include '{t5x / SMALL}'",
        f"include '{t5x / PRETRAIN}'",
        "from t5x import utils",
        "STEPS = 30",
        "TRAIN_STEPS = %STEPS  # a macro of a macro",
        "utils.DatasetConfig.shuffle = False  # without a scope: the scoped binding wins",
        "utils.SaveCheckpointConfig.period = 5",
    )
    config = gin.config(
        *(mine, *bindings(**COMMON)),
        *("--gin.STEPS=40", "--gin.STEPS=41", "--gin.utils.SaveCheckpointConfig.period=6"),
    )
    found = values(config)
    assert found["batch_size"] == "128"
    assert found["train_steps"] == "41"
    assert found["data.shuffle"] == "True"
    assert found["checkpoint.save.period"] == "6"


def test_the_best_checkpoint(gin: Gin, t5x: Path, tmp_path: Path) -> None:
    mine = on_top(
        *(tmp_path, t5x, "from t5x import checkpoints", "from t5x import utils"),
        "utils.SaveCheckpointConfig.checkpointer_cls = @checkpoints.SaveBestCheckpointer",
        "utils.SaveCheckpointConfig.keep = 2",
        "checkpoints.SaveBestCheckpointer:",
        "  metric_name_to_monitor = 'train/loss'",
        "  metric_mode = 'min'",
    )
    config = gin.config(mine, *bindings(**COMMON, TRAIN_STEPS="1100"))
    save = config.checkpoint.save
    assert (save.metric_name_to_monitor, save.metric_mode) == ("train/loss", "min")
    assert (save.keep_best, save.keep) == (2, None)
    assert save.keep_checkpoints_without_metrics  # T5X's default


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (("topk = 1",), {"method": "greedy"}),
        (("topk = 0", "topp = 0.9"), {"method": "sample", "top_p": 0.9, "top_k": 0}),
        (("topk = 40", "temperature = 0.5"), {"method": "sample", "top_k": 40, "temperature": 0.5}),
    ],
)
def test_sampling(
    gin: Gin, t5x: Path, tmp_path: Path, bound: tuple[str, ...], expected: dict[str, object]
) -> None:
    mine = on_top(
        *(tmp_path, t5x, "from t5x import decoding", "from t5x import models"),
        "models.EncoderDecoderModel.decode_fn = @decoding.temperature_sample",
        "decoding.temperature_sample:",
        *(f"  {line}" for line in bound),
        run="t5x/configs/runs/infer.gin",
    )
    config = gin.config(mine, *bindings(**COMMON, **OWN["infer"]))
    decoding = config_lib.build(config).decoding
    assert {name: getattr(decoding, name) for name in expected} == expected
    assert decoding.max_length == 16


def test_evaluation_of_all_checkpoints(gin: Gin, t5x: Path) -> None:
    status, out, err = gin(
        *(t5x / SMALL, t5x / "t5x/configs/runs/eval.gin", "--gin.CHECKPOINT_PATH='run'"),
        *bindings(**COMMON),
        *("--gin.RestoreCheckpointConfig.mode='all'", "--gin.DatasetConfig.use_cached=True"),
        "--gin.EncoderDecoderModel.predict_batch_with_aux.num_decodes=4",
    )
    assert status == 0
    assert "set `data.cache_dir` to a token cache" in err
    job = config_lib.build(config_of(out))
    assert (job.checkpoint, job.checkpoint_steps, job.data.eval_split) == ("run", "all", "test")
    assert (job.decoding.method, job.decoding.num_beams) == ("beam", 4)


def test_optimizers_of_optax(gin: Gin, t5x: Path, tmp_path: Path) -> None:
    mine = on_top(
        *(tmp_path, t5x, "from t5x import optimizers", "import optax"),
        "OPTIMIZER = @optimizers.chain()",
        "optimizers.chain.transformations = [@optax.clip(), @optax.adamw()]",
        "optax.clip.max_delta = 1.0",
        "optax.adamw.learning_rate = @optax.warmup_cosine_decay_schedule()",
        "optax.warmup_cosine_decay_schedule:",
        "  init_value = 0.0",
        "  peak_value = 1e-4",
        "  warmup_steps = 100",
        "  decay_steps = %TRAIN_STEPS",
    )
    config = gin.config(mine, *bindings(**COMMON, TRAIN_STEPS="1100"))
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-4, 100, 1100)
    theirs = optax.chain(optax.clip(1.0), optax.adamw(rate))  # decays norm scales, too
    params = {"norm": {"scale": np.ones(2)}, "kernel": np.full((2, 2), 3.0)}
    updates = []
    for optimizer in (theirs, config_lib.build(config).optimizer):
        state = optimizer.init(params)
        for _ in range(3):
            update, state = optimizer.update(params, state, params)
        updates.append(update)
    jax.tree.map(np.testing.assert_array_equal, *updates)
    _, out, err = gin(mine, *bindings(**COMMON, TRAIN_STEPS="9"), "--gin.optax.adamw.b3=1")
    assert not out and "optax.adamw.b3 = 1 (command line): optax.adamw has no parameter b3" in err
    rate = "--gin.optax.adamw.learning_rate=@utils.create_learning_rate_scheduler()"
    _, out, err = gin(mine, *bindings(**COMMON, TRAIN_STEPS="9"), rate)
    assert not out and "create_learning_rate_scheduler(); expected a function of optax" in err


def test_a_function_of_fully_sharded_rules(gin: Gin, t5x: Path, tmp_path: Path) -> None:
    mine = on_top(
        *(tmp_path, t5x, "import __main__ as train_script", "from t5x import partitioning"),
        "import tasks",
        "train_script.train.partitioner = @partitioning.ModelBasedPjitPartitioner()",
        "partitioning.ModelBasedPjitPartitioner:",
        "  model_parallel_submesh = (4, 1, 1, 1)",
        "  logical_axis_rules = @tasks.fully_sharded_logical_axis_rules()",
    )
    config = gin.config(mine, *bindings(**COMMON, TRAIN_STEPS="1100"))
    assert (
        config.partitioner.logical_axis_rules == recipes.mt0_t0pp().partitioner.logical_axis_rules
    )


@pytest.mark.parametrize("scanned", ["True", "False"])
def test_every_layer_of_scalable_t5_has_a_position_bias(gin: Gin, t5x: Path, scanned: str) -> None:
    files = (t5x / "t5x/examples/scalable_t5/t5_1_1/small.gin", t5x / PRETRAIN)
    given = (*bindings(**COMMON, TRAIN_STEPS="10"), f"--gin.network.T5Config.scan_layers={scanned}")
    _, out, _ = gin(*files, *given)
    network = values(config_of(out))
    assert network["model.network.relpos_bias_per_layer"] == "True"
    assert network["model.network.scan_layers"] == scanned
    assert network["model.network.remat_policy"] == "'minimal'"
    _, out, _ = gin(t5x / SMALL, t5x / PRETRAIN, *bindings(**COMMON, TRAIN_STEPS="10"))
    assert values(config_of(out))["model.network.relpos_bias_per_layer"] == "False"


def test_networks_that_mtf_does_not_know_are_refused(gin: Gin, t5x: Path, tmp_path: Path) -> None:
    mine = on_top(
        *(tmp_path, t5x, "from t5x import models", "from my_project import network"),
        "models.EncoderDecoderModel.module = @network.Transformer()",
    )
    err = gin.refused(mine, *bindings(**COMMON, TRAIN_STEPS="10"))
    assert f"({mine}:5): mtf has no equivalent of @my_project.network.Transformer()" in err
