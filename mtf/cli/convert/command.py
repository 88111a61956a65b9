"""Defines the options of `mtf.convert` and checks their combinations."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Sequence

from mtf.base.errors import UserError, conversion_as_user_errors
from mtf.cli.command import add_trust_option, exit_status, new_parser
from mtf.cli.convert import FORMATS

_USAGE = """
  %(prog)s CHECKPOINT OUT_DIR --to FORMAT [OPTIONS]
  %(prog)s --inspect CHECKPOINT [--step N]
  %(prog)s --compare A B [--step N]"""
_EPILOG = """\
examples:
  python -m mtf.convert runs/quickstart-20260101-120000 exported --to hf --verify
  python -m mtf.convert t5_1_1_small/checkpoint_1000000 exported --to hf \\
      --vocabulary sentencepiece.model
  python -m mtf.convert runs/quickstart-20260101-120000 for_t5x --to t5x
  python -m mtf.convert --inspect t5_1_1_small/checkpoint_1000000
  python -m mtf.convert --compare t5_1_1_small/checkpoint_1000000 exported

A local OUT_DIR appears when the export is complete and has passed verification, if any. In a
remote OUT_DIR, the file that marks the export as complete is written last; T5X, mtf and PEFT
exports, and hf with --verify, are first written to this machine. Exit status: 0 on success; 1 if
verification or --compare finds a difference or the disk is full; 2 if the conversion is impossible.
"""

_ONLY_HF = ("vocabulary", "config", "model_type", "max_shard_size", "push_to_hub")
# Format → options that cannot be used with it. Further checks of --verify are in `export`.
_NOT_FOR: dict[str, Sequence[str]] = {
    **dict.fromkeys(("t5x", "t5x_orbax", "mtf"), _ONLY_HF),
    "peft": ("verify", "dtype", "optimizer", *_ONLY_HF),
}
# Format → default of --dtype. In other formats, tensors keep their stored types.
_DTYPES = {"hf": "float32"}
# Whether models are verified by default; tests may set this to False.
VERIFY_BY_DEFAULT = True
_MAX_SHARD_SIZE = "5GB"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = _parser()
    # Unlike `parse_args`, this accepts options between CHECKPOINT and the optional OUT_DIR.
    options = parser.parse_intermixed_args(argv)
    logging.basicConfig(format="%(message)s")
    if options.inspect or options.compare:
        _check_mode(parser, options)
        return exit_status(lambda: _show(options), only_shows=True)
    needed = {"OUT_DIR": options.out_dir, "--to": options.to}
    if missing := [name for name, value in needed.items() if value is None]:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    return exit_status(lambda: _convert(options), only_shows=False)


def _parser() -> argparse.ArgumentParser:
    description = "Convert a checkpoint from any format to another."
    parser = new_parser("convert", description, _EPILOG)
    parser.usage = _USAGE
    add = parser.add_argument
    others = "Mesh TensorFlow checkpoint, Hugging Face directory, or OWNER/NAME on its hub"
    add("checkpoint", metavar="CHECKPOINT", help=f"run directory, checkpoint_STEP, {others}")
    out = "new or empty directory; T5X's and mtf's formats create checkpoint_STEP in it, unless it "
    add("out_dir", metavar="OUT_DIR", nargs="?", help=f"{out}has that name itself")
    formats = "; ".join(f"{name}: {content}" for name, content in FORMATS.items())
    mode = parser.add_mutually_exclusive_group()
    inspect = "list the tensors with their shapes, types, statistics, and names in the file, "
    mode.add_argument("--inspect", action="store_true", help=f"{inspect}in T5X and in Hugging Face")
    compare = "compare CHECKPOINT with OUT_DIR, each in any format; exit with status 1 if they "
    mode.add_argument("--compare", action="store_true", help=f"{compare}differ")
    add("--to", choices=list(FORMATS), help=f"output format; {formats}")
    add("--step", type=int, metavar="N", help="step of the checkpoint (default: the latest)")
    ema = "convert the averaged parameters that a run with trainer.ema keeps"
    add("--ema", action="store_true", help=ema)
    verify = (
        "compare float32 logits in JAX and PyTorch, with one layer's parameters in memory at a "
    )
    verify += "time (default for Hugging Face models if PyTorch is installed)"
    add("--verify", action=argparse.BooleanOptionalAction, help=verify)
    vocabulary = "SentencePiece model, byt5 (bytes), or none (no tokenizer); default: that of the "
    vocabulary += "run or Hugging Face directory, otherwise none; --model-type byt5 implies byt5"
    add("--vocabulary", metavar="PATH.model|byt5|none", help=vocabulary)
    config = "run directory or config.json of the run that wrote the checkpoint, or Hugging Face "
    config += "config.json, to use instead of inferred settings (default: the run directory of "
    add("--config", metavar="PATH", help=f"{config}CHECKPOINT)")
    model_type = "model type in Hugging Face's config (default: umt5 if each layer has a relative "
    model_type += "position bias, mt5 if the vocabulary has mT5's size, 250112, otherwise t5)"
    add_trust_option(add)
    add("--model-type", choices=["t5", "mt5", "umt5", "byt5"], help=model_type)
    dtype = f"type of the parameters (default: float32 for {' and '.join(_DTYPES)}, otherwise the "
    add("--dtype", metavar="float32|bfloat16", help=f"{dtype}stored type)")
    optimizer = "the optimizer state (default: keep, if CHECKPOINT has one and FORMAT can hold it)"
    add("--optimizer", choices=["keep", "drop"], help=f"keep or drop {optimizer}")
    shard_size = f"maximum size of a weight file (default: {_MAX_SHARD_SIZE})"
    add("--max-shard-size", metavar="SIZE", help=shard_size)
    every = "convert each checkpoint_STEP of CHECKPOINT to OUT_DIR/checkpoint_STEP, except those "
    add("--all", action="store_true", help=f"{every}that exist already")
    repo = "upload the export to the Hugging Face hub, or print the command if there is no token"
    add("--push-to-hub", metavar="USER/NAME", help=repo)
    non_finite = "convert even if parameters contain NaN or infinity, which is an error by default"
    add("--allow-non-finite", action="store_true", help=non_finite)
    return parser


def _check_mode(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exits with a usage error if an argument cannot be used with --inspect or --compare."""
    mode = "--inspect" if options.inspect else "--compare"
    allowed = {"checkpoint", "step", "inspect", "compare", "out_dir"}
    given = {name for name, value in vars(options).items() if value != parser.get_default(name)}
    if others := _flags(sorted(given - allowed)):
        parser.error(f"{others} cannot be used with {mode}")
    if options.inspect and options.out_dir is not None:
        parser.error(f"--inspect takes one checkpoint; {options.out_dir} is a second one")
    if options.compare and options.out_dir is None:
        parser.error("--compare takes two checkpoints")


def _show(options: argparse.Namespace) -> int:
    """Prints the tensors of a checkpoint, or the differences between two; returns the status."""
    from mtf.cli.convert import inspection

    if options.inspect:
        return inspection.inspect(options.checkpoint, options.step)
    return inspection.compare_checkpoints(options.checkpoint, options.out_dir, options.step)


@conversion_as_user_errors()
def _convert(options: argparse.Namespace) -> int:
    """Converts a checkpoint or, with --all, several; returns the exit status."""
    if given := [name for name in _NOT_FOR.get(options.to, ()) if getattr(options, name)]:
        reason = "which writes float32 adapters" if options.to == "peft" else "only with --to hf"
        raise UserError(f"{_flags(given)} cannot be used with --to {options.to}, {reason}.")
    if options.to.startswith("hf") and options.optimizer == "keep":
        raise UserError(
            "--optimizer keep: Hugging Face's format has no optimizer state. Use --to t5x, "
            "t5x_orbax or mtf, or --optimizer drop."
        )
    single = [x for x in ("step", "push_to_hub") if getattr(options, x) is not None]
    if options.all and single:
        raise UserError(f"{_flags(single)} cannot be used with --all (several checkpoints).")
    options.dtype = options.dtype or _DTYPES.get(options.to)
    if options.verify is None and not VERIFY_BY_DEFAULT:
        options.verify = False
    options.max_shard_size = _parse_size(options.max_shard_size or _MAX_SHARD_SIZE)
    from mtf.cli.convert import export
    from mtf.config import allowed

    allowed.trust_runs(options.trust)

    return export.export_all(options) if options.all else export.export_one(options)


def _flags(names: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _parse_size(text: str) -> int:
    """Returns the number of bytes in a size such as 500MB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?)?B?", text.strip().upper())
    if not match:
        raise UserError(
            f"--max-shard-size {text}: expected a number of bytes, or a size such as 500MB or 5GB."
        )
    return int(float(match[1]) * _UNITS[match[2] or ""])
