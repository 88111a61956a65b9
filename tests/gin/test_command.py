"""Mistakes in gin files and on the command line, as a user meets them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.gin.helpers import COMMON, Gin, bindings, write
from tests.small import python

MODEL = "t5x/examples/t5/t5_1_1/small.gin"
RUN = "t5x/configs/runs/pretrain.gin"
LEFT = "TRAIN_STEPS=1000"


@pytest.fixture
def pretrain(gin: Gin, t5x: Path) -> Gin:
    """`python -m mtf.gin` with a model, a run and the values that it needs, and more arguments."""
    always = (t5x / MODEL, t5x / RUN, *bindings(**COMMON), f"--gin.{LEFT}")
    return dataclasses.replace(gin, always=always)


def test_a_missing_file(gin: Gin, t5x: Path) -> None:
    err = gin.refused("nowhere/small.gin", f"--gin_search_paths=a,{t5x}")
    assert "The gin file nowhere/small.gin does not exist" in err
    for folder in ("nowhere", "a/nowhere", f"{t5x}/nowhere"):
        assert f"\n  {folder}/small.gin" in err
    assert "--gin_search_paths" in err


def test_a_missing_include(gin: Gin, tmp_path: Path) -> None:
    mine = write(tmp_path / "deep", "mine.gin", "include 'other/one.gin'")
    err = gin.refused(mine)
    assert f"The gin file other/one.gin, which {mine} includes, does not exist" in err
    assert f"{tmp_path}/deep/other/one.gin" in err


def test_files_that_include_each_other(gin: Gin, tmp_path: Path) -> None:
    write(tmp_path, "one.gin", "include 'two.gin'")
    write(tmp_path, "two.gin", "include 'one.gin'")
    err = gin.refused("one.gin")
    assert "include each other: one.gin → two.gin → one.gin" in err


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("train.x = [1, 2", "mine.gin:"),
        ("train.x 5", "mine.gin:2 "),
        ("train.x = @", "mine.gin:"),
        ("train/.x = 5", "mine.gin:2 "),
        ("train.x = 5oops", "mine.gin:2 "),
        ("include 5", "mine.gin:2 "),
    ],
)
def test_syntax_errors_name_file_and_line(gin: Gin, tmp_path: Path, line: str, shown: str) -> None:
    write(tmp_path, "mine.gin", "X = 1", line)
    err = gin.refused("mine.gin")
    assert err.startswith(f"error: {shown}")
    assert "is not valid gin" in err
    assert "Traceback" not in err


def test_all_missing_values_are_named_at_once(gin: Gin, t5x: Path) -> None:
    err = gin.refused(t5x / MODEL, t5x / RUN, "--gin.BATCH_SIZE=%SIZE")
    assert "5 required values are missing" in err
    for name in ("MIXTURE_OR_TASK_NAME", "TASK_FEATURE_LENGTHS", "TRAIN_STEPS", "DROPOUT_RATE"):
        assert f"\n  {name} (" in err
    assert "\n  SIZE (command line: BATCH_SIZE = %SIZE), which is not defined" in err
    assert "MODEL_DIR" not in err  # optional here


def test_a_misspelled_macro_in_a_file(pretrain: Gin, tmp_path: Path) -> None:
    mine = write(tmp_path, "mine.gin", "BATCH_SISE = 8", "MY_OWN_NAME = 5")
    err = pretrain.refused(mine)
    assert (
        f"BATCH_SISE = 8: no binding refers to %BATCH_SISE. Did you mean BATCH_SIZE? ({mine}:1"
        in (" ".join(err.split()))
    )
    assert "MY_OWN_NAME" not in err
    status, out, err = pretrain(mine, "--skip_all_gin_unknowns")
    assert status == 0 and "batch_size=128," in out
    assert "Not understood:\n  * BATCH_SISE = 8" in err


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("t5x/export.py", "Use python -m mtf.convert CHECKPOINT OUT --to hf"),
        ("t5x.precompile_unfragmented", "Use python -m mtf plan RECIPE"),
        ("mine/my_train.py", "Expected one of train, eval, infer, main"),
        ("--fdl_config=small_c4_pretrain", "small_c4_pretrain, small_wmt_finetune and small_wmt"),
    ],
)
def test_programs_without_a_counterpart(pretrain: Gin, program: str, message: str) -> None:
    err = pretrain.refused("python3", program)
    assert program in err and message in err and err.count("\n") == 1
    status, _, err = pretrain("python3", "-m", "t5x.main", "--run_mode=export")
    assert status == 2 and "export is not translated" in err


def test_a_shard_of_inference(gin: Gin, t5x: Path) -> None:
    files = (f"--gin_file={t5x / MODEL}", f"--gin_file={t5x}/t5x/configs/runs/infer.gin")
    own = {"num_shards": "4", "CHECKPOINT_PATH": "'start/checkpoint_1000000'"}
    given = bindings(**COMMON, **{"infer.num_shards": own.pop("num_shards")}, **own)
    status, out, err = gin("python3", "-m", "t5x.infer", "--shard_id=2", *files, *given)
    assert status == 0, err
    assert "shard_id=2," in out and "num_shards=4," in out


def test_macros_that_refer_to_each_other(pretrain: Gin, tmp_path: Path) -> None:
    mine = write(tmp_path, "mine.gin", "BATCH_SIZE = %ROWS", "ROWS = %BATCH_SIZE")
    err = pretrain.refused(mine)
    assert "Macros refer to each other: BATCH_SIZE → ROWS → BATCH_SIZE (" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gim.BATCH_SIZE=8"], "no flag --gim.BATCH_SIZE. Did you mean --gin.BATCH_SIZE=8?"),
        (["-gin.BATCH_SIZE=8"], "no flag -gin.BATCH_SIZE. Did you mean --gin.BATCH_SIZE=8?"),
        (["--gin_serch_paths=x"], "no flag --gin_serch_paths. Did you mean --gin_search_paths"),
        (["--gin.BATCH_SIZE="], "BATCH_SIZE= has no value"),
        (["--gin.TRAIN_STEPS"], "TRAIN_STEPS has no value; expected --gin.NAME=VALUE"),
        (
            ["--gin_params=BATCH_SIZE = 8"],
            "there is no flag --gin_params. Did you mean --gin_param",
        ),
        (["--gin_param=BATCH_SIZE", "=", "8"], "Quote bindings that contain spaces"),
        (["--gin.MODEL_DIR=runs/x"], "quotes inside the shell's quotes: MODEL_DIR=\"'runs/x'\"."),
        (["--gin_file=folder"], "folder is a folder; expected a gin file"),
        (["--gin_file=binary.gin"], "binary.gin is not a gin file: it is not text"),
        (["--output=nowhere/x.py"], "--output nowhere/x.py: the folder nowhere does not exist"),
    ],
)
def test_arguments(pretrain: Gin, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.gin").write_bytes(bytes(range(256)))
    before = {*tmp_path.rglob("*")}
    err = pretrain.refused(*arguments)
    assert err.startswith("error: ") and message in err
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("status", "binding", "reason"),
    [
        (2, "BATCH_SIZE=-8", "batch_size must be at least 1, not -8"),
        (2, "DROPOUT_RATE=2.0", "dropout_rate must be in [0, 1), not 2.0"),
        (
            2,
            "network.T5Config.mlp_activations=('gelu_new','linear')",
            "mlp_activations must be names",
        ),
        (
            2,
            "utils.create_learning_rate_scheduler.factors='constant * rsqrt_decai'",
            "unknown schedule factor 'rsqrt_decai'",
        ),
        (2, "BATCH_SIZE=0", "train/utils.DatasetConfig.batch_size = %BATCH_SIZE ("),
        (2, "train.trainer_cls=@moe.MoeTrainer", "no equivalent of @moe.MoeTrainer"),
        (2, "MODEL=@models.DecoderOnlyModel()", "expected @models.EncoderDecoderModel"),
        (2, "OPTIMIZER=@mine.Lion()", "no equivalent of @mine.Lion()"),
        (2, "OPTIMIZER=@optax.lyon()", "no equivalent of @optax.lyon()"),
        (2, "OPTIMIZER=@optax.lion()", "optimizer.learning_rate (float"),
        (2, "MODEL=None", "no equivalent of None"),
        (2, "network.T5Config.scale_attn_logits=True", "mtf does not scale attention"),
        (2, "RestoreCheckpointConfig.dtype='bfloat16'", "mtf always trains float32 parameters"),
        (2, "RestoreCheckpointConfig.path=['a', 'b']", "mtf restores from only one path"),
        (2, "RestoreCheckpointConfig.state_transformation_fns=[@f]", "use `assignment_map`"),
        (2, "adafactor.Adafactor.max_parameter_scale=1.0", "does not limit the scale"),
        (2, "adafactor.Adafactor.logical_factor_rules={'a': 1}", "factors the second moment"),
        (2, "train.get_dataset_fn=@mine.data", "set `data` of the recipe instead"),
        (2, "train/DatasetConfig.trim_output_features=False", "mtf always trims features"),
        (2, "train_eval/DatasetConfig.mixture_or_task_name='x'", "of the training mixture; to le"),
        (2, "SentencePieceVocabulary.reverse_extra_ids=False", "sentinels in descending order"),
        (2, "output/SentencePieceVocabulary.sentencepiece_model_file='x'", "one value for this"),
        (2, "EncoderDecoderModel.output_vocabulary=@seqio.ByteVocabulary()", "has one vocabulary"),
        (2, "predict_batch_with_aux.prompt_with_targets=True", "decodes from the first token"),
        (2, "BATCH_SISE=8", "no binding refers to %BATCH_SISE. Did you mean BATCH_SIZE"),
        (2, "trian/utils.DatasetConfig.batch_size=5", "the scope trian. Did you mean train"),
        (2, "utils.SafeCheckpointConfig.keep=1", "Did you mean utils.SaveCheckpointConfig"),
        (2, "train.eval_perod=5", "has no parameter eval_perod. Did you mean eval_period"),
        (2, "mine.Thing.x=5", "mtf does not know mine.Thing"),
        (2, "infer_eval/utils.DatasetConfig.split='test'", "this run does not use this binding"),
        (0, "train.use_hardware_rng=True", "mtf uses JAX's default random generator"),
        (0, "train_eval/utils.DatasetConfig.batch_size=3", "one batch size"),
        (0, "train.actions={'TRAIN': [@trainer.EarlyStoppingAction()]}", "mtf has no other action"),
        (0, "standard_logical_axis_rules.activation_partitioning_dims=2", "dimensions 2 and 1"),
    ],
)
def test_bindings_that_are_refused_not_understood_or_documented(
    pretrain: Gin, status: int, binding: str, reason: str
) -> None:
    vocabulary = "EncoderDecoderModel.output_vocabulary=@output/seqio.SentencePieceVocabulary()"
    found, out, err = pretrain(f"--gin.{vocabulary}", f"--gin.{binding}")
    assert (found, "def recipe()" in out) == (status, status < 2)
    joined = " ".join(err.split())
    assert reason in joined
    if status == 0:  # Differences are also in the recipe.
        assert reason in " ".join(out.split())


def test_values_of_a_wrong_type_are_named_at_once(pretrain: Gin) -> None:
    wrong = ("--gin.BATCH_SIZE='8'", "--gin.train.eval_period=[1]", "--gin.MIXTURE_OR_TASK_NAME=5")
    err = pretrain.refused(*wrong)
    assert "train/utils.DatasetConfig.batch_size = %BATCH_SIZE (" in err
    assert "expected int, got str '8'" in err
    assert "train_script.train.eval_period = [1] (command line): expected int or None" in err
    assert "mixture_or_task_name = %MIXTURE_OR_TASK_NAME" in err


def test_runs_that_are_not_whole(gin: Gin, t5x: Path) -> None:
    assert "No gin file was given" in gin()[2]
    assert "The gin files do not configure a job" in gin(t5x / MODEL)[2]
    err = gin(t5x / MODEL, t5x / RUN, t5x / "t5x/configs/runs/infer.gin")[2]
    assert "several jobs: train_script.train (" in err and "infer_script.infer (" in err
    status, _, err = gin(t5x / RUN, *bindings(**COMMON), f"--gin.{LEFT}")
    assert status == 2 and "MODEL (" in err
    assert "Add a model's gin file, such as t5x/examples/t5/t5_1_1/base.gin" in err
    given = bindings(MIXTURE_OR_TASK_NAME="'t0_train'", CHECKPOINT_PATH="'x'", DROPOUT_RATE="0.1")
    status, out, err = gin(t5x / MODEL, t5x / "t5x/configs/runs/eval.gin", *given)
    assert (status, out) == (2, "") and "task_feature_lengths = %TASK_FEATURE_LENGTHS (" in err
    assert "bind lengths such as {'inputs': 512, 'targets': 128}" in err


def test_output_does_not_overwrite_other_files(pretrain: Gin, tmp_path: Path) -> None:
    mine = write(tmp_path, "mine.py", "x = 1")
    err = pretrain.refused("--output", "mine.py")
    assert "choose another name" in err
    assert mine.read_text() == "x = 1\n"
    assert pretrain("--output", "mine.txt")[0] == 2
    assert pretrain("--output", "new.py")[0] == 0
    assert pretrain("--output", "new.py")[0] == 0  # its own output


def test_relative_steps_need_the_step_of_the_checkpoint(gin: Gin, t5x: Path) -> None:
    files = (t5x / MODEL, t5x / "t5x/configs/runs/finetune.gin")
    rest = (*bindings(**COMMON), f"--gin.{LEFT}", "--gin.TRAIN_STEPS_RELATIVE=10")
    status, out, _ = gin(*files, *rest, "--gin.INITIAL_CHECKPOINT_PATH='mine/checkpoint_500'")
    assert status == 0
    assert "train_steps=510," in out
    err = gin.refused(*files, *rest, "--gin.INITIAL_CHECKPOINT_PATH='mine/best'")
    assert "relative_steps counts from the step of the initial checkpoint" in err


def test_a_translation_imports_no_arrays(t5x: Path) -> None:
    gin_config = pytest.importorskip("gin", reason="needs mtf-jax[gin]")
    folder = Path(gin_config.__file__).parents[1]
    code = (
        f"import sys\nsys.path.append({str(folder)!r})\nfrom mtf.cli.gin.command import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(sorted({'jax', 'flax', 'tensorflow', 't5x', 'seqio'} & set(sys.modules)))"
    )
    arguments = [str(t5x / MODEL), str(t5x / RUN), *bindings(**COMMON), f"--gin.{LEFT}"]
    done = python("-c", code, *arguments)
    assert done.stdout.splitlines()[-1] == "[]"
