"""t5_mesh_transformer's command lines become recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

import recipes
from tests.gin.helpers import Gin, config_of, differences, values, write

PROGRAM = ("t5_mesh_transformer", "--tpu=pod", "--gcp_project=p", "--tpu_zone=z", "--model_dir=run")


def param(text: str) -> str:
    """A `--gin_param`."""
    return f"--gin_param={text}"


NO_RAMP = param("learning_rate_schedule_noam.linear_decay_fraction = 0.0")


def t0(mesh: Path, size: str, mixture: str) -> list[str]:
    """The command of T0's page (t-zero: training/README.md), with a local operative config."""
    return [
        *PROGRAM,
        *("--additional_task_cache_dirs=caches", "--module_import=t0.seqio_tasks"),
        *("--gin_file=dataset.gin", param(f"MIXTURE_NAME = '{mixture}'")),
        f"--gin_file=t5.1.1.lm100k.{size}.gin",
        *(param("utils.tpu_mesh_shape.tpu_topology = 'v3-512'"),),
        *(param("run.train_steps = 1112200"),),
        "--gin_file=learning_rate_schedules/constant_0_001.gin",
        *(param("tokens_per_batch=1048576"), param("pack_dataset.use_custom_ops = False")),
        *(param("run.sequence_length = {'inputs': 1024, 'targets': 256}"),),
        *(param("model_info = 'run/model-info.txt'"),),
        *(param("mesh_train_dataset_fn.use_cached = True"),),
        *(param("serialize_num_microbatches.tokens_per_microbatch_per_replica = 2048"),),
        *(param("tpu_mesh_shape.model_parallelism = 8"), f"--gin_location_prefix={mesh}"),
    ]


@pytest.mark.parametrize(
    ("size", "mixture", "recipe"),
    [
        ("xxl", "t0++_train", recipes.t0pp_xxl),
        ("xxl", "t0+_train", recipes.t0p_xxl),
        ("xxl", "t0_train", recipes.t0_xxl),
        ("xl", "t0_train", recipes.t0_3b),
    ],
)
def test_t0_page(gin: Gin, mesh: Path, size: str, mixture: str, recipe: object) -> None:
    config = gin.config(*t0(mesh, size, mixture))
    assert callable(recipe)
    differing = differences(config, recipe(cache_dir="caches"))
    rules = {path for path in differing if "logical_axis_rules" in path}
    assert rules
    assert differing - rules == {
        # The recipe reads a token cache, the command SeqIO's; attention is recomputed, parameters
        # are split over the replicas, too, and a checkpoint is saved every 1,000 steps: all
        # documented in the recipe.
        *("data.loader", "data.use_cached", "model.network.remat_policy"),
        *("checkpoint.save.period", "data.eval_split", "model_dir"),
    }


def test_t0_evaluation(gin: Gin, mesh: Path) -> None:
    status, out, _ = gin(
        *(*PROGRAM, "--gin_file=t5.1.1.lm100k.xxl.gin", "--additional_task_cache_dirs=caches"),
        *("--module_import=t0.seqio_tasks", "--gin_file=score_eval.gin"),
        *(param("MIXTURE_NAME = 't0_eval_score_eval'"),),
        *(param("utils.tpu_mesh_shape.tpu_topology = 'v3-128'"),),
        *(param("run.batch_size = ('tokens_per_batch', 262144)"),),
        *(param("run.sequence_length = {'inputs': 1024, 'targets': 256}"),),
        *(param("model_info = 'run/model-info.txt'"),),
        *(param("mesh_train_dataset_fn.use_cached = True"),),
        *(param("mesh_eval_dataset_fn.use_cached = True"),),
        *(param("tpu_mesh_shape.model_parallelism = 4"),),
        *(param("eval_checkpoint_step = 1112200"), param("run.dataset_split = 'validation'")),
        f"--gin_location_prefix={mesh}",
    )
    assert status == 0
    differing = differences(config_of(out), recipes.t0_eval(checkpoint="run"))
    assert differing == {"checkpoint_steps", "data.allow_missing_tasks"}
    assert values(config_of(out))["checkpoint_steps"] == "1112200"


def test_pretraining_from_a_model_and_defaults(gin: Gin, mesh: Path) -> None:
    config = gin.config(
        *(*PROGRAM, "--gin_file=dataset.gin", "--gin_file=models/t5.1.1.xxl.gin"),
        "--gin_file=learning_rate_schedules/rsqrt_no_ramp_down.gin",
        *(param("MIXTURE_NAME = 'c4_v220_span_corruption'"), param("run.train_steps = 1000")),
        *(param("run.batch_size = ('sequences_per_batch', 64)"),),
        f"--gin_location_prefix={mesh}",
    )
    found = values(config)
    assert found["model.network.emb_dim"] == "4096"
    assert found["model.network.dropout_rate"] == "0.0"
    assert found["data.task_feature_lengths.inputs"] == "512"
    assert found["optimizer.learning_rate.factors"] == "'constant * rsqrt_decay'"
    assert found["optimizer.learning_rate.warmup_steps"] == "10000"
    assert found["batch_size"] == "64"
    assert found["partitioner.num_partitions"] == "8"
    assert found["checkpoint.save.period"] == "5000"
    assert found["model.loss_normalizing_factor"] == "'NUM_TOTAL_TARGET_TOKENS'"


def test_defaults_of_mesh_tensorflow(gin: Gin, tmp_path: Path) -> None:
    mine = write(
        *(tmp_path, "mine.gin", "utils.run.train_steps = 10"),
        "run.train_dataset_fn = @mesh_train_dataset_fn",
        "mesh_train_dataset_fn.mixture_or_task_name = 't0_train'",
    )
    err = gin.refused("t5_mesh_transformer", mine)
    assert "mtf has no linear decay to 0 at the end of a run" in err
    config = gin.config("t5_mesh_transformer", mine, NO_RAMP)
    found = values(config)
    expected = {
        "model.network.emb_dim": "1024",
        "model.network.mlp_dim": "4096",
        "model.network.num_encoder_layers": "6",
        "model.network.num_decoder_layers": "6",
        "model.network.num_heads": "8",
        "model.network.head_dim": "128",
        "model.network.dropout_rate": "0.1",
        "model.network.mlp_activations": "('relu',)",
        "model.network.logits_via_embedding": "True",
        "model.network.dtype": "'float32'",  # no --tpu
        "batch_size": "4",  # 2,048 tokens per replica
    }
    assert {path: found[path] for path in expected} == expected


OLDER = """
import t5.data.sentencepiece_vocabulary
import mesh_tensorflow.transformer.utils
inputs_length = 512
d_model = 768
d_ff = 3072
d_kv = 64
num_heads = 12
num_layers = 12
denoise.inputs_fn = @preprocessors.noise_span_to_unique_sentinel
mesh_train_dataset_fn.mixture_or_task_name = 'all_mix'
targets_length/random_spans_helper.inputs_length = %inputs_length
run.batch_size = ('tokens_per_batch', 1048576)
run.init_checkpoint = 'gs://t5-data/pretrained_models/base/model.ckpt-999900'
run.mesh_shape = @mesh_tensorflow.transformer.utils.tpu_mesh_shape()
run.sequence_length = {'inputs': %inputs_length, 'targets': 512}
run.train_dataset_fn = \\
    @t5.models.mesh_transformer.mesh_train_dataset_fn
run.train_steps = 1000000000
SentencePieceVocabulary.sentencepiece_model_file = \\
    @t5.models.mesh_transformer.get_sentencepiece_model_path()
tpu_mesh_shape.tpu_topology = '8x8'
decoder/Unitransformer.loss_denominator = 233472
unsupervised.preprocessors = [@preprocessors.select_random_chunk]
"""


def test_an_operative_config_of_the_first_models(gin: Gin, tmp_path: Path) -> None:
    status, out, err = gin(write(tmp_path, "operative_config.gin", OLDER), *PROGRAM, NO_RAMP)
    assert status == 0, err
    assert "unsupervised.preprocessors" in err
    found = values(config_of(out))
    assert found["batch_size"] == "2048"
    assert found["trainer.num_microbatches"] == "4"  # 128 replicas, 4 × 512 tokens each
    assert found["model.loss_normalizing_factor"] == "233472.0"
    assert (
        found["checkpoint.restore.path"]
        == "'gs://t5-data/pretrained_models/base/model.ckpt-999900'"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run.sequence_length = {'inputs': 0, 'targets': 0}", "expected lengths of at least 1"),
        ("run.model_type = 'lm'", "run.model_type = 'lm' (command line): mtf supports only"),
        ("run.mode = 'export'", "run.mode = 'export' has no equivalent"),
        ("run.learning_rate_schedule = @mine", "run.learning_rate_schedule"),
        ("decoder/SelfAttention.num_heads = 3", "differ in ['num_heads']"),
        ("run.sequence_length = {'inputs': @f(), 'targets': 5}", "set run.sequence_length"),
        ("run.batch_size = ('files', 3)", "tokens_per_batch"),
        ("run.batch_size = 'many'", "expected int or tuple"),
        (
            "run.mode = 'infer'",
            "run.mode = 'infer' has no equivalent; expected train or score_eval",
        ),
        ("run.variable_filter = 'decoder'", "mtf supports only None"),
        (
            "linear_decay.steps_or_fraction = 0.1\nrun.learning_rate_schedule = [@linear_decay]",
            "set this to 0",
        ),
        (
            "MIXTURE_NAME = 'c4_v220_unsupervised'\nunsupervised.preprocessors = []",
            "data.objective",
        ),
        ("SelfAttention.dropout_rate = 0.5", "mtf uses the same dropout rate everywhere"),
        ("Unitransformer.positional_embedding = True", "mtf supports only False"),
        ("decoder/make_layer_stack.layers = [@Talking]", "no equivalent of @Talking"),
    ],
)
def test_what_has_no_equivalent(gin: Gin, mesh: Path, text: str, message: str) -> None:
    err = gin.refused(*t0(mesh, "base", "t0_train"), param(text))
    assert message in err
    assert err.startswith("error: ")


def test_a_misspelled_binding_is_refused(gin: Gin, mesh: Path) -> None:
    err = gin.refused(
        *(*PROGRAM, "--gin_file=dataset.gin", "--gin_file=models/t5.1.1.base.gin"),
        *(param("run.train_step = 5"), NO_RAMP, f"--gin_location_prefix={mesh}"),
    )
    assert "run has no parameter train_step. Did you mean train_steps" in err


def test_macros_of_an_operative_config(gin: Gin, mesh: Path, tmp_path: Path) -> None:
    """Of T0's macros, the number of tokens must be used; the file of model_info may be missing."""
    text = (mesh / "t5.1.1.lm100k.base.gin").read_text()
    text = text.replace("tpu_estimator_model_fn.model_info_file = %model_info", "")
    literal = text.replace("%tokens_per_batch", "131072")  # 128 sequences
    long = text.replace("%tokens_per_batch", "@tokens_per_batch/macro()")
    long = long.replace("tokens_per_batch = 65536", "tokens_per_batch/macro.value = 65536")
    command = t0(mesh, "base", "t0_train")
    operative = f"--gin_file={tmp_path / 'operative.gin'}"
    command[command.index("--gin_file=t5.1.1.lm100k.base.gin")] = operative

    write(tmp_path, "operative.gin", literal)
    err = gin.refused(*command)
    assert err.count("\n") == 2  # one binding was not understood
    assert "tokens_per_batch = 1048576: no binding refers to %tokens_per_batch. Bind the" in err
    status, out, _ = gin(*command, "--skip_all_gin_unknowns")
    assert (status, values(config_of(out))["batch_size"]) == (0, "128")

    write(tmp_path, "operative.gin", long)
    config = gin.config(*command)
    assert values(config)["batch_size"] == "1024"


def test_an_unknown_mixture_without_a_module(gin: Gin, mesh: Path) -> None:
    status, _, err = gin(
        *(*PROGRAM, "--gin_file=dataset.gin", "--gin_file=models/t5.1.1.base.gin"),
        *(param("run.train_steps = 5"), param("MIXTURE_NAME = 't0_trian'"), NO_RAMP),
        f"--gin_location_prefix={mesh}",
    )
    assert status == 0
    assert (
        "mtf does not define t0_trian; set data.module to the module that registers it. Did you"
        in (" ".join(err.split()))
    )
