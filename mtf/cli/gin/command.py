"""Implements `python -m mtf gin FILE.gin …`, which translates gin files to a recipe."""

from __future__ import annotations

import argparse
import functools
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from mtf.base.errors import UserError, did_you_mean
from mtf.cli.command import exit_status, new_parser

_EPILOG = """\
examples:
  python -m mtf gin t5x/examples/t5/t5_1_1/small.gin \\
      t5x/configs/runs/finetune.gin --gin.MIXTURE_OR_TASK_NAME="'t0_train'" \\
      --gin.TRAIN_STEPS=1_020_000 … --output my_recipe.py
  python -m mtf.run my_recipe.py:recipe --dry-run

You can also paste a complete command of T5X or t5_mesh_transformer:
  python -m mtf gin python3 ${T5X_DIR}/t5x/train.py --gin_file=my.gin \\
      --gin.MODEL_DIR=\\"gs://…\\"
  python -m mtf gin t5_mesh_transformer --gin_file=dataset.gin \\
      --gin_param="MIXTURE_NAME = '…'"

Gin files are searched for in the current directory, in --gin_search_paths, in
the checkout with the program, in the installed packages t5x and t5, and in all
folders above the file that includes them.

The exit status is 0, or 2 if no recipe was made, for example because a binding
was not understood.
"""
# Programs in a pasted command: `python -m t5x.train`, `t5x.train_unfragmented`, `t5x/train.py`.
_PROGRAM = re.compile(
    r"(?:t5x|t5\.models)\.(?:\w+\.)*(\w+?)(?:_unfragmented)?|(?:.*/)?(\w+)\.py|(t5_mesh_transformer)"
)
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_TRANSLATED = (
    *("train", "eval", "infer", "main", "xm_launch"),
    *("t5_mesh_transformer", "mesh_transformer_main"),
)
# Other programs → what to use instead.
_INSTEAD = {
    "export": "python -m mtf.convert CHECKPOINT OUT --to hf, which exports to PyTorch",
    "precompile": "python -m mtf plan RECIPE, which compiles a recipe without training",
    "convert_tf_checkpoint": "python -m mtf.convert CHECKPOINT OUT --to t5x",
}
# T5X's pages for pretraining name a file that T5X has under another name.
_RENAMED = {
    "t5x/examples/t5/t5_1_1/c4_pretrain_small.gin": (
        "t5x/examples/t5/t5_1_1/examples/small_c4_pretrain.gin"
    )
}
# Flags of T5X and t5_mesh_transformer that affect only machines and logs, not results.
_IGNORED = (
    *("tpu_job_name", "gcp_project", "tpu_zone", "tpu_topology", "tfds_data_dir", "undefok"),
    *("t5_tfds_data_dir", "coordinator_address", "process_count", "process_index"),
    *("initialization_timeout", "name", "tpu_cores", "project_dirs", "pip_install"),
)
_IGNORED_SWITCHES = (
    *("alsologtostderr", "logtostderr", "multiprocess_gpu", "dry_run", "clone_github"),
)


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("gin", "Translate gin files of T5X or Mesh TensorFlow's T5.", _EPILOG)
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE.gin", help="gin files, which are read in this order")
    add("--output", metavar="FILE.py", help="write the recipe to this file instead of printing it")
    several = functools.partial(add, action="append", default=[])
    several("--gin_file", metavar="FILE.gin", help="gin file to read after FILE.gin")
    text = "bind NAME to VALUE after all files have been read; short form: --gin.NAME=VALUE"
    several("--gin_bindings", "--gin_param", dest="bindings", metavar="NAME=VALUE", help=text)
    shard = "infer_script.infer.shard_id = {}".format
    several("--shard_id", dest="bindings", type=shard, metavar="N", help="shard to infer")
    folders = functools.partial(add, action="extend", default=[], metavar="DIR,…", type=_split)
    paths = ("--gin_search_paths", "--gin_location_prefix")
    folders(*paths, dest="search_paths", help="folders to search for gin files")
    caches = ("--seqio_additional_cache_dirs", "--additional_task_cache_dirs")
    folders(*caches, dest="cache_dirs", help="directories with SeqIO caches")
    several("--module_import", dest="modules", metavar="MODULE", help="module that registers tasks")
    add("--model_dir", metavar="DIR", help="run directory of t5_mesh_transformer and xm_launch.py")
    add("--tpu", metavar="NAME", help="TPU; without one, t5_mesh_transformer computes in float32")
    text = "leave out bindings that are not understood, and name them on stderr"
    add("--skip_all_gin_unknowns", nargs="?", const="true", metavar="true|false", help=text)
    for name in ("-m", "--run_mode"):
        several(name, dest="programs", help=argparse.SUPPRESS)
    add("-u", action="store_true", help=argparse.SUPPRESS)
    for name in _IGNORED:
        add(f"--{name}", help=argparse.SUPPRESS)
    for name in _IGNORED_SWITCHES:
        add(f"--{name}", nargs="?", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    parsed = [
        f"--gin_bindings={each.removeprefix('--gin.')}" if each.startswith("--gin.") else each
        for each in arguments
        if each != "--"
    ]
    parser = _parser()
    options, unknown = parser.parse_known_intermixed_args(parsed)

    def run() -> int:
        _check_flags([*unknown, *(f for f in options.files if f.startswith("-"))], parser)
        return _main(options, arguments)

    return exit_status(run, only_shows=options.output is None)


def _check_flags(unknown: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Raises UserError, with a suggestion, if there are unknown flags."""
    if not unknown:
        return
    flag, _, value = unknown[0].partition("=")
    if flag.startswith("--fdl"):
        raise UserError(
            f"{unknown[0]}: Fiddle configs of T5X are not translated. T5X's small_c4_pretrain, "
            "small_wmt_finetune and small_wmt_eval are recipes.t5_1_1_small_c4, "
            "recipes.t5_1_1_finetune and recipes.evaluate. Write your own configs as recipes."
        )
    if "." in flag:  # such as --gim.BATCH_SIZE=8
        _, _, name = flag.partition(".")
        hint = f" Did you mean --gin.{name}={value or 'VALUE'}?"
    else:
        known = sorted({*re.findall(r"--\w+", parser.format_help())})
        hint = did_you_mean(flag, known) or " Use --help to list the flags."
    raise UserError(f"{unknown[0]}: there is no flag {flag}.{hint}")


def _main(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    # Imported here because these modules import Fiddle, which --help does not need.
    from mtf.cli.gin import recipe
    from mtf.cli.gin.jobs import Command

    programs = [word for word in options.files if _PROGRAM.fullmatch(word)]
    for program in options.programs + programs:
        _check_program(program)
    files = [f for f in options.files if not (f in programs or _PYTHON.fullmatch(f))]
    files = [_RENAMED.get(file, file) for file in files + options.gin_file]
    if not files:
        raise UserError(
            "No gin file was given. Run python -m mtf gin FILE.gin …; use --help to show examples."
        )
    wrong = [each for each in options.bindings if not each.partition("=")[2].strip()]
    if wrong:
        raise UserError(
            f"{wrong[0]} has no value; expected --gin.NAME=VALUE or --gin_param='NAME = VALUE'. "
            "Quote bindings that contain spaces."
        )
    _check_output(options.output, recipe.MADE_BY)
    command = Command(
        files=tuple(files),
        bindings=tuple(options.bindings),
        search_paths=(*options.search_paths, *_checkouts(programs)),
        cache_dirs=tuple(options.cache_dirs),
        modules=tuple(options.modules),
        model_dir=options.model_dir,
        tpu=options.tpu is not None,
        skip_unknown=options.skip_all_gin_unknowns not in (None, "false", "False", "0"),
    )
    translation = recipe.translate(command)
    text = recipe.as_text(translation, arguments)
    if options.output is None:
        print(text, end="")
    else:
        from mtf.base.writing import os_errors_refused, write_atomically

        with os_errors_refused(Path(options.output), "--output"):
            write_atomically(Path(options.output), text)
        print(
            f"Wrote {options.output}. To check the recipe, run "
            f"python -m mtf.run {shlex.quote(options.output)}:recipe --dry-run"
        )
    for line in recipe.report(translation):
        print(line, file=sys.stderr)
    return 0


def _check_program(word: str) -> None:
    """Raises UserError if a program, or a mode of T5X's main.py, has no counterpart."""
    found = _PROGRAM.fullmatch(word)
    name = word if found is None else next(filter(None, found.groups()))
    if name not in _TRANSLATED:
        hint = _INSTEAD.get(name)
        expected = f"Use {hint}." if hint else f"Expected one of {', '.join(_TRANSLATED)}."
        raise UserError(f"{word} is not translated. {expected}")


def _checkouts(programs: Sequence[str]) -> list[str]:
    """Returns the folders that may be the checkout with a program, such as DIR/t5x/train.py."""
    paths = [Path(program) for program in programs if program.endswith(".py")]
    return [str(folder) for path in paths for folder in path.absolute().parents[1:3]]


def _check_output(output: str | None, mark: str) -> None:
    """Raises UserError unless `output` is a new Python file or was written by this command."""
    if output is None:
        return
    if not output.endswith(".py"):
        raise UserError(f"--output {output!r}: expected the name of a Python file, such as my.py.")
    path = Path(output)
    if not path.parent.is_dir():
        raise UserError(f"--output {output}: the folder {path.parent} does not exist.")
    if path.exists() and (not path.is_file() or mark not in path.read_text(errors="replace")):
        raise UserError(
            f"--output {output} exists and was not written by this command; choose another name."
        )


def _split(text: str) -> list[str]:
    return [part for part in text.split(",") if part]
