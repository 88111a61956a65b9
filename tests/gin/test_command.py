"""Mistakes in gin files and on the command line, as a user meets them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mtf import extras
from mtf.errors import UserError
from mtf.gin import reading
from tests.gin.helpers import COMMON, Gin, bindings, write

ROOT = Path(__file__).resolve().parents[2]
MODEL = "t5x/examples/t5/t5_1_1/small.gin"
RUN = "t5x/configs/runs/pretrain.gin"
LEFT = "TRAIN_STEPS=1000"


@pytest.fixture
def files(t5x: Path) -> tuple[Path, Path]:
    """A model and a run."""
    return t5x / MODEL, t5x / RUN


def test_a_missing_file(gin: Gin, t5x: Path) -> None:
    status, out, err = gin("nowhere/small.gin", f"--gin_search_paths=a,{t5x}")
    assert (status, out) == (2, "")
    assert "The gin file nowhere/small.gin does not exist" in err
    for folder in ("nowhere", "a/nowhere", f"{t5x}/nowhere"):
        assert f"\n  {folder}/small.gin" in err
    assert "--gin_search_paths" in err


def test_a_missing_include(gin: Gin, tmp_path: Path) -> None:
    mine = write(tmp_path / "deep", "mine.gin", "X = 1", "include 'other/one.gin'")
    status, _, err = gin(mine)
    assert status == 2
    assert f"The gin file other/one.gin, which {mine} includes, does not exist" in err
    assert f"{tmp_path}/deep/other/one.gin" in err


def test_files_that_include_each_other(gin: Gin, tmp_path: Path) -> None:
    write(tmp_path, "one.gin", "include 'two.gin'")
    write(tmp_path, "two.gin", "include 'one.gin'")
    status, _, err = gin("one.gin")
    assert status == 2
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
    status, out, err = gin("mine.gin")
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {shown}")
    assert "is not valid gin" in err
    assert "Traceback" not in err


def test_a_syntax_error_of_the_command_line(gin: Gin, files: tuple[Path, Path]) -> None:
    status, _, err = gin(*files, "--gin.MODEL_DIR=gs://bucket")
    assert status == 2
    assert "error: command line is not valid gin" in err
    assert "MODEL_DIR=gs://bucket" in err


def test_a_binding_without_a_value(gin: Gin, files: tuple[Path, Path]) -> None:
    status, _, err = gin(*files, "--gin.TRAIN_STEPS")
    assert status == 2
    assert "--gin.NAME=VALUE" in err


def test_all_missing_values_are_named_at_once(gin: Gin, files: tuple[Path, Path]) -> None:
    status, out, err = gin(*files, "--gin.BATCH_SIZE=%SIZE")
    assert (status, out) == (2, "")
    assert "5 required values are missing" in err
    for name in ("MIXTURE_OR_TASK_NAME", "TASK_FEATURE_LENGTHS", "TRAIN_STEPS", "DROPOUT_RATE"):
        assert f"\n  {name} (" in err
    assert "\n  SIZE (command line: BATCH_SIZE = %SIZE), which nothing defines" in err
    assert "MODEL_DIR" not in err  # optional here


def test_a_misspelled_macro_is_not_accepted(gin: Gin, files: tuple[Path, Path]) -> None:
    arguments = [*bindings(**COMMON), f"--gin.{LEFT}", "--gin.BATCH_SISE=8"]
    status, out, err = gin(*files, *arguments)
    assert status == 1
    assert "def recipe()" in out
    for text in (out, err):
        assert "Not understood:" in text
        assert "BATCH_SISE = 8: no binding refers to %BATCH_SISE. Did you mean BATCH_SIZE" in text


def test_a_misspelled_macro_in_a_file(gin: Gin, files: tuple[Path, Path], tmp_path: Path) -> None:
    mine = write(tmp_path, "mine.gin", "BATCH_SISE = 8", "MY_OWN_NAME = 5")
    status, _, err = gin(*files, mine, *bindings(**COMMON), f"--gin.{LEFT}")
    assert status == 1
    assert (
        f"BATCH_SISE = 8: no binding refers to %BATCH_SISE. Did you mean BATCH_SIZE? ({mine}:1"
        in (" ".join(err.split()))
    )
    assert "MY_OWN_NAME" not in err


def test_macros_that_refer_to_each_other(
    gin: Gin, files: tuple[Path, Path], tmp_path: Path
) -> None:
    mine = write(tmp_path, "mine.gin", "BATCH_SIZE = %ROWS", "ROWS = %BATCH_SIZE")
    status, out, err = gin(*files, mine, *bindings(**COMMON), f"--gin.{LEFT}")
    assert (status, out) == (2, "")
    assert "Macros refer to each other: BATCH_SIZE → ROWS → BATCH_SIZE (" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gim.BATCH_SIZE=8"], "no flag --gim.BATCH_SIZE. Did you mean --gin.BATCH_SIZE=8?"),
        (["-gin.BATCH_SIZE=8"], "no flag -gin.BATCH_SIZE. Did you mean --gin.BATCH_SIZE=8?"),
        (["--gin_serch_paths=x"], "no flag --gin_serch_paths. Did you mean --gin_search_paths"),
        (["--gin.BATCH_SIZE="], "BATCH_SIZE= has no value"),
        (
            ["--gin_params=BATCH_SIZE = 8"],
            "there is no flag --gin_params. Did you mean --gin_param",
        ),
        (["--gin_param=BATCH_SIZE", "=", "8"], "in quotes if it has spaces"),
        (
            ["--gin.MODEL_DIR=runs/x"],
            "quotes inside of the shell's quotes: MODEL_DIR=\"'runs/x'\".",
        ),
        (["--gin_file=folder"], "folder is a folder; expected a gin file"),
        (["--gin_file=binary.gin"], "binary.gin is not a gin file: it is not text"),
        (["--output=nowhere/x.py"], "--output nowhere/x.py: there is no folder nowhere"),
    ],
)
def test_arguments(
    gin: Gin, files: tuple[Path, Path], tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.gin").write_bytes(bytes(range(256)))
    before = {*tmp_path.rglob("*")}
    status, out, err = gin(*files, *bindings(**COMMON), f"--gin.{LEFT}", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and message in err
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("BATCH_SIZE=-8", "batch_size must be at least 1, not -8"),
        ("DROPOUT_RATE=2.0", "dropout_rate must be in [0, 1), not 2.0"),
        ("network.T5Config.mlp_activations=('gelu_new','linear')", "mlp_activations must be names"),
        (
            "utils.create_learning_rate_scheduler.factors='constant * rsqrt_decai'",
            "unknown schedule factor 'rsqrt_decai'",
        ),
    ],
)
def test_values_that_mtf_refuses_give_no_recipe(
    gin: Gin, files: tuple[Path, Path], binding: str, message: str
) -> None:
    status, out, err = gin(*files, *bindings(**COMMON), f"--gin.{LEFT}", f"--gin.{binding}")
    assert (status, out) == (2, "")
    assert message in err
    name = "train/utils.DatasetConfig.batch_size = %BATCH_SIZE ("
    assert (name in err) == binding.startswith("BATCH_SIZE")


def test_a_byte_order_mark_is_no_mistake(
    gin: Gin, files: tuple[Path, Path], tmp_path: Path
) -> None:
    mine = tmp_path / "mine.gin"
    mine.write_bytes(b"\xef\xbb\xbfBATCH_SIZE = 8\n")
    status, out, err = gin(*files, mine, *bindings(**COMMON), f"--gin.{LEFT}")
    assert status == 0, err
    assert "batch_size=8," in out


def test_jobs_that_are_none_of_mtf(gin: Gin, t5x: Path, tmp_path: Path) -> None:
    export = write(
        tmp_path, "export.gin", "from t5x import export_lib", "export_lib.save.batch_size = 1"
    )
    status, out, err = gin(t5x / MODEL, export)
    assert (status, out) == (2, "")
    assert f"{export}:2: export_lib.save has no equivalent in a recipe" in err
    assert "python -m mtf.convert" in err
    status, _, err = gin(t5x / MODEL, t5x / RUN, t5x / "t5x/configs/runs/infer.gin")
    assert status == 2
    assert "several jobs: train_script.train (" in err and "infer_script.infer (" in err


@pytest.mark.parametrize(
    ("binding", "reason"),
    [
        ("trian/utils.DatasetConfig.batch_size=5", "the scope trian. Did you mean train"),
        ("utils.SafeCheckpointConfig.keep=1", "Did you mean utils.SaveCheckpointConfig"),
        ("train.eval_perod=5", "has no parameter eval_perod. Did you mean eval_period"),
        ("mine.Thing.x=5", "mtf does not know mine.Thing"),
        ("infer_eval/utils.DatasetConfig.split='test'", "this run does not use it"),
    ],
)
def test_what_is_not_understood(
    gin: Gin, files: tuple[Path, Path], binding: str, reason: str
) -> None:
    status, out, err = gin(*files, *bindings(**COMMON), f"--gin.{LEFT}", f"--gin.{binding}")
    assert status == 1
    assert "def recipe()" in out
    joined = " ".join(err.split())
    assert reason in joined
    assert "(command line)" in joined


@pytest.mark.parametrize(
    ("binding", "reason"),
    [
        ("train.use_hardware_rng=True", "JAX's default generator draws dropout masks"),
        ("train_eval/utils.DatasetConfig.batch_size=3", "one batch size"),
        ("train.run_eval_before_training=True", "mtf evaluates every"),
        ("train.actions={'TRAIN': [@trainer.EarlyStoppingAction()]}", "mtf has no other action"),
        ("standard_logical_axis_rules.activation_partitioning_dims=2", "dimensions 2 and 1"),
    ],
)
def test_documented_differences(
    gin: Gin, files: tuple[Path, Path], binding: str, reason: str
) -> None:
    status, out, err = gin(*files, *bindings(**COMMON), f"--gin.{LEFT}", f"--gin.{binding}")
    assert status == 0, err
    assert reason in " ".join(err.split())
    assert reason in " ".join(out.replace("\n#", "").split())


@pytest.mark.parametrize(
    ("binding", "reason"),
    [
        ("train.trainer_cls=@moe.MoeTrainer", "no equivalent of @moe.MoeTrainer"),
        ("MODEL=@models.DecoderOnlyModel()", "expected @models.EncoderDecoderModel"),
        ("OPTIMIZER=@optax.lion()", "no equivalent of @optax.lion()"),
        ("MODEL=None", "no equivalent of None"),
        ("network.T5Config.scale_attn_logits=True", "T5's attention is not scaled"),
    ],
)
def test_runs_without_an_equivalent(
    gin: Gin, files: tuple[Path, Path], binding: str, reason: str
) -> None:
    status, out, err = gin(*files, *bindings(**COMMON), f"--gin.{LEFT}", f"--gin.{binding}")
    assert (status, out) == (2, "")
    assert "This run has no equivalent" in err
    assert reason in err


def test_values_of_a_wrong_type_are_named_at_once(gin: Gin, files: tuple[Path, Path]) -> None:
    wrong = ("--gin.BATCH_SIZE='8'", "--gin.train.eval_period=[1]", "--gin.MIXTURE_OR_TASK_NAME=5")
    status, out, err = gin(*files, *bindings(**COMMON), f"--gin.{LEFT}", *wrong)
    assert (status, out) == (2, "")
    assert "train/utils.DatasetConfig.batch_size = %BATCH_SIZE (" in err
    assert "expected int, got str '8'" in err
    assert "train_script.train.eval_period = [1] (command line): expected int or None" in err
    assert "mixture_or_task_name = %MIXTURE_OR_TASK_NAME" in err


def test_a_model_alone_is_no_run(gin: Gin, t5x: Path) -> None:
    status, _, err = gin(t5x / MODEL)
    assert status == 2
    assert "bind parameters of no job" in err
    assert "t5x/configs/runs" in err


def test_a_run_without_a_model(gin: Gin, t5x: Path) -> None:
    status, _, err = gin(t5x / RUN, *bindings(**COMMON), f"--gin.{LEFT}")
    assert status == 2
    assert "MODEL (" in err
    assert "Add a model's gin file, such as t5x/examples/t5/t5_1_1/base.gin" in err


def test_no_file(gin: Gin) -> None:
    status, _, err = gin()
    assert status == 2
    assert "No gin file is given" in err


def test_output_does_not_overwrite_other_files(
    gin: Gin, files: tuple[Path, Path], tmp_path: Path
) -> None:
    arguments = (*files, *bindings(**COMMON), f"--gin.{LEFT}")
    mine = write(tmp_path, "mine.py", "x = 1")
    status, _, err = gin(*arguments, "--output", "mine.py")
    assert status == 2
    assert "choose another name" in err
    assert mine.read_text() == "x = 1\n"
    assert gin(*arguments, "--output", "mine.txt")[0] == 2
    assert gin(*arguments, "--output", "new.py")[0] == 0
    assert gin(*arguments, "--output", "new.py")[0] == 0  # its own output


def test_an_output_that_cannot_be_written(gin: Gin, files: tuple[Path, Path]) -> None:
    arguments = (*files, *bindings(**COMMON), f"--gin.{LEFT}")
    status, out, err = gin(*arguments, "--output", "nowhere/mine.py")
    assert (status, out) == (2, "")
    assert "--output nowhere/mine.py: there is no folder nowhere" in err


def test_relative_steps_need_the_step_of_the_checkpoint(gin: Gin, t5x: Path) -> None:
    files = (t5x / MODEL, t5x / "t5x/configs/runs/finetune.gin")
    rest = (*bindings(**COMMON), f"--gin.{LEFT}", "--gin.TRAIN_STEPS_RELATIVE=10")
    status, out, _ = gin(*files, *rest, "--gin.INITIAL_CHECKPOINT_PATH='mine/checkpoint_500'")
    assert status == 0
    assert "train_steps=510," in out
    status, _, err = gin(*files, *rest, "--gin.INITIAL_CHECKPOINT_PATH='mine/best'")
    assert status == 2
    assert "relative_steps counts from the step of the initial checkpoint" in err


def test_without_gin_config_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name.partition(".")[0])

    monkeypatch.setattr(extras.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"pip install 'mtf-jax\[gin\]'"):
        reading.read(["x.gin"], [], [], {})


def test_the_help_is_fast_and_imports_no_arrays() -> None:
    code = (
        "import sys\nfrom mtf.gin.__main__ import main\ntry:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "print(sorted({'jax', 'fiddle', 'tensorflow', 'gin'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "t5_mesh_transformer" in done.stdout


def test_a_translation_imports_no_arrays(gin: Gin, files: tuple[Path, Path]) -> None:
    import gin as gin_config

    folder = Path(gin_config.__file__).parents[1]
    code = (
        f"import sys\nsys.path.append({str(folder)!r})\nfrom mtf.gin.__main__ import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(sorted({'jax', 'flax', 'tensorflow', 't5x', 'seqio'} & set(sys.modules)))"
    )
    arguments = [*map(str, files), *bindings(**COMMON), f"--gin.{LEFT}"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
