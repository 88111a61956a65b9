"""`python -m mtf.gin FILE.gin…`: translates gin files to a recipe.

Exit status: 0 if every binding was translated or has a documented reason, 1 if some were not
understood (the recipe is printed nevertheless), 2 if there is no recipe.
"""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtf.command import exit_status, new_parser
from mtf.errors import UserError, did_you_mean

_EPILOG = """\
examples:
  python -m mtf.gin t5x/examples/t5/t5_1_1/small.gin t5x/configs/runs/finetune.gin \\
      --gin.MIXTURE_OR_TASK_NAME="'t0_train'" --gin.TRAIN_STEPS=1_020_000 … --output my_recipe.py
  python -m mtf.run my_recipe.py:recipe --dry-run

A whole command line may follow, with its flags as they are:
  python -m mtf.gin python3 t5x/train.py --gin_file=my.gin --gin.MODEL_DIR="'gs://…'"
  python -m mtf.gin t5_mesh_transformer --gin_file=dataset.gin --gin_param="MIXTURE_NAME = '…'"

Gin files are looked for in the current directory, in --gin_search_paths, in the installed packages
t5x and t5, and in the folders above the file that includes them.

Exit status: 0 if every binding was translated or has a reason in docs/t5x.md, 1 if some were not
understood (the recipe is printed nevertheless), 2 and no recipe if a file or a value is missing, if
a value is refused, or if the run has no equivalent.
"""
# Words of a pasted command line.
_PROGRAMS = (
    *("python", "python3", "-m", "t5_mesh_transformer", "train.py", "eval.py", "infer.py"),
    *("t5x.train", "t5x.eval", "t5x.infer", "t5.models.mesh_transformer_main"),
)
# Flags of T5X and t5_mesh_transformer about machines and logs, which do not change a run.
_IGNORED = (
    *("tpu_job_name", "gcp_project", "tpu_zone", "tpu_topology", "tfds_data_dir"),
    *("t5_tfds_data_dir", "coordinator_address", "process_count", "process_index"),
)
_IGNORED_SWITCHES = ("alsologtostderr", "logtostderr", "multiprocess_gpu", "skip_all_gin_unknowns")


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("gin", "Translate gin files of T5X or Mesh TensorFlow's T5.", _EPILOG)
    parser.add_argument("files", nargs="*", metavar="FILE.gin", help="gin files, in order")
    add = parser.add_argument
    add("--output", metavar="FILE.py", help="write the recipe to this file instead of printing it")
    several: Any = {"action": "append", "default": []}
    add("--gin_file", metavar="FILE.gin", help="gin file to read after FILE.gin …", **several)
    text = "bind NAME to VALUE after all files are read; several times, in order"
    add(
        "--gin_bindings",
        "--gin_param",
        dest="bindings",
        metavar="NAME=VALUE",
        help=f"{text}; also --gin.NAME=VALUE",
        **several,
    )
    add(
        "--gin_search_paths",
        "--gin_location_prefix",
        dest="search_paths",
        metavar="DIR,…",
        help="folders to look for gin files in",
        **several,
    )
    add(
        "--seqio_additional_cache_dirs",
        "--additional_task_cache_dirs",
        dest="cache_dirs",
        metavar="DIR,…",
        help="directories of SeqIO's caches",
        **several,
    )
    module = "module that registers tasks"
    add("--module_import", dest="modules", metavar="MODULE", help=module, **several)
    add("--model_dir", metavar="DIR", help="run directory (of t5_mesh_transformer)")
    add("--tpu", metavar="NAME", help="TPU (t5_mesh_transformer computes in float32 without one)")
    for name in _IGNORED:
        add(f"--{name}", help=argparse.SUPPRESS)
    for name in _IGNORED_SWITCHES:
        add(f"--{name}", nargs="?", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    parsed = [
        f"--gin_bindings={each.removeprefix('--gin.')}" if each.startswith("--gin.") else each
        for each in arguments
        if each not in _PROGRAMS and each != "--"
    ]
    parser = _parser()
    options, unknown = parser.parse_known_intermixed_args(parsed)

    def run() -> int:
        _check_flags([*unknown, *(f for f in options.files if f.startswith("-"))], parser)
        return _main(options, arguments)

    return exit_status(run, only_shows=options.output is None)


def _check_flags(unknown: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Refuses flags that are not known."""
    if not unknown:
        return
    flag, _, value = unknown[0].partition("=")
    if "." in flag:  # such as --gim.BATCH_SIZE=8
        _, _, name = flag.partition(".")
        hint = f" Did you mean --gin.{name}={value or 'VALUE'}?"
    else:
        known = sorted({*re.findall(r"--\w+", parser.format_help())})
        hint = did_you_mean(flag, known) or " --help lists the flags."
    raise UserError(f"{unknown[0]}: there is no flag {flag}.{hint}")


def _main(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    # Imported here because --help does not need Fiddle.
    from mtf.gin import recipe

    files = [f for f in options.files if os.path.basename(f) not in _PROGRAMS] + options.gin_file
    if not files:
        raise UserError(
            "No gin file is given. Write python -m mtf.gin FILE.gin …; --help shows examples."
        )
    wrong = [each for each in options.bindings if "=" not in each]
    if wrong:
        raise UserError(
            f"{wrong[0]} has no value; expected --gin.NAME=VALUE or --gin_param='NAME = VALUE', in "
            "quotes if it has spaces."
        )
    _check_output(options.output, recipe.MADE_BY)
    translation = recipe.translate(
        recipe.Command(
            files=tuple(files),
            bindings=tuple(options.bindings),
            search_paths=_split(options.search_paths),
            cache_dirs=_split(options.cache_dirs),
            modules=tuple(options.modules),
            model_dir=options.model_dir,
            tpu=options.tpu is not None,
        )
    )
    text = recipe.as_text(translation, arguments)
    if options.output is None:
        print(text, end="")
    else:
        from mtf.writing import os_errors_refused, write_atomically

        with os_errors_refused(Path(options.output), "--output"):
            write_atomically(Path(options.output), text)
        print(
            f"Wrote {options.output}. Check it: "
            f"python -m mtf.run {shlex.quote(options.output)}:recipe --dry-run"
        )
    for line in recipe.report(translation):
        print(line, file=sys.stderr)
    return translation.status


def _check_output(output: str | None, mark: str) -> None:
    """Refuses to overwrite a file that this command did not write."""
    if output is None:
        return
    if not output.endswith(".py"):
        raise UserError(f"--output {output!r}: expected the name of a Python file, such as my.py.")
    path = Path(output)
    if not path.parent.is_dir():
        raise UserError(f"--output {output}: there is no folder {path.parent}.")
    if path.exists() and (not path.is_file() or mark not in path.read_text(errors="replace")):
        raise UserError(f"--output {output} exists and is not a translation; choose another name.")


def _split(lists: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for each in lists for part in each.split(",") if part)


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
