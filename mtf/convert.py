"""`python -m mtf.convert CHECKPOINT OUT_DIR --to FORMAT`: converts a checkpoint."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import logging
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mtf import verification
from mtf.command import exit_status, new_parser
from mtf.convert_all import bytes_bar
from mtf.errors import UserError, conversion_as_user_errors
from mtf.storage import AnyPath, StorePath, as_path, file_sizes
from mtf.writing import new_directory

if TYPE_CHECKING:
    from conversion import Checkpoint
    from conversion.huggingface import Export
    from conversion.tokenizer import Tokenizer
    from mtf.text.vocabularies import Vocabulary

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}

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

OUT_DIR is created only once the export is complete and, unless --no-verify, verified. In a store,
the file that marks it as complete is written last; formats of T5X and mtf, and hf with --verify,
are first written to this machine. Exit status: 0 done, 1 --verify found different logits or tokens,
--compare found different tensors, or the disk is full, 2 the checkpoint cannot be converted.
"""

_FORMATS = {
    "hf": "Hugging Face, for PyTorch",
    "hf_flax": "Hugging Face, for Flax in transformers 4",
    "t5x": "T5X's zarr and msgpack",
    "t5x_orbax": "T5X's Orbax layout",
    "mtf": "mtf's own",
    "peft": "the LoRA adapters only, for PEFT",
}
_HUGGING_FACE = ("hf", "hf_flax")
# Options of Hugging Face's formats, by their names in the parsed arguments.
_HF_ONLY = ("vocabulary", "config", "model_type", "max_shard_size")
_MAX_SHARD_SIZE = "5GB"
_STEP_NAME = re.compile(r"checkpoint_(\d+)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    parser = _parser()
    # Unlike parse_args, it accepts options between CHECKPOINT and OUT_DIR, which may be left out.
    arguments = parser.parse_intermixed_args(argv)
    _check_arguments(parser, arguments)
    logging.basicConfig(format="%(message)s")
    if arguments.inspect or arguments.compare:
        from mtf import inspection

        show = inspection.inspect if arguments.inspect else inspection.compare_checkpoints
        return exit_status(lambda: show(arguments), only_shows=True)
    return exit_status(lambda: _run(arguments), only_shows=False)


def _parser() -> argparse.ArgumentParser:
    description = "Convert a checkpoint of any format to another one."
    parser = new_parser("convert", description, _EPILOG)
    parser.usage = _USAGE
    add = parser.add_argument
    others = "checkpoint of Mesh TensorFlow, Hugging Face directory, or OWNER/NAME on its hub"
    add("checkpoint", metavar="CHECKPOINT", help=f"run directory, checkpoint_STEP, {others}")
    out_dir = "new or empty directory; formats of T5X and mtf create checkpoint_STEP in it, or "
    add(
        "out_dir", metavar="OUT_DIR", nargs="?", help=f"{out_dir}OUT_DIR itself if that is its name"
    )
    formats = "; ".join(f"{name}: {content}" for name, content in _FORMATS.items())
    inspect = "list the tensors of CHECKPOINT: shapes, types, statistics, and names in the file, "
    add("--inspect", action="store_true", help=f"{inspect}in T5X and in Hugging Face")
    compare = "compare two checkpoints of any formats, CHECKPOINT and the one in place of OUT_DIR; "
    add("--compare", action="store_true", help=f"{compare}exit status 1 if tensors differ")
    add("--to", choices=list(_FORMATS), help=f"output format; {formats}")
    add("--step", type=int, metavar="N", help="step of the checkpoint (default: the latest)")
    ema = "convert the average of the parameters that a run with trainer.ema keeps"
    add("--ema", action="store_true", help=ema)
    verify = "compare float32 logits in JAX and PyTorch (default for Hugging Face models that fit)"
    add("--verify", action=argparse.BooleanOptionalAction, help=verify)
    by_layer = "--verify with the parameters of one layer in memory at a time (default for models "
    add("--verify-by-layer", action="store_true", help=f"{by_layer}larger than memory)")
    vocabulary = (
        "SentencePiece model, byt5 (bytes), or none (no tokenizer); default: the vocabulary of the "
        "run or Hugging Face directory, otherwise none; --model-type byt5 implies byt5"
    )
    add("--vocabulary", metavar="PATH.model|byt5|none", help=vocabulary)
    config = "run directory or config.json of the run that wrote the checkpoint, or config.json of "
    config += "Hugging Face, in place of inferred settings (default: the run directory of "
    add("--config", metavar="PATH", help=f"{config}CHECKPOINT)")
    model_type = (
        "model type in Hugging Face's config (default: umt5 if each layer has a relative position "
        "bias, mt5 if the vocabulary has mT5's size, 250112, otherwise t5)"
    )
    add("--model-type", choices=["t5", "mt5", "umt5", "byt5"], help=model_type)
    dtype = "type of the parameters (default: float32 for hf, otherwise the stored type)"
    add("--dtype", metavar="float32|bfloat16", help=dtype)
    optimizer = "the optimizer state (default: keep, if CHECKPOINT has one and FORMAT can hold it)"
    add("--optimizer", choices=["keep", "drop"], help=f"keep or drop {optimizer}")
    shard_size = f"largest size of a file of weights (default: {_MAX_SHARD_SIZE})"
    add("--max-shard-size", metavar="SIZE", help=shard_size)
    all_of_them = (
        "convert each checkpoint_STEP of CHECKPOINT to OUT_DIR/checkpoint_STEP; those that "
    )
    add("--all", action="store_true", help=f"{all_of_them}are there already are skipped")
    repo = "upload the export to the Hugging Face hub, or print the command if there is no token"
    add("--push-to-hub", metavar="USER/NAME", help=repo)
    non_finite = "convert parameters that contain NaN or infinity, which are refused by default"
    add("--allow-non-finite", action="store_true", help=non_finite)
    return parser


def _check_arguments(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Ends the program if options do not belong together."""
    if not (arguments.inspect or arguments.compare):
        missing = [name for name in ("out_dir", "to") if getattr(arguments, name) is None]
        if missing:
            shown = ", ".join({"out_dir": "OUT_DIR", "to": "--to"}[name] for name in missing)
            parser.error(f"the following arguments are required: {shown}")
        return
    mode = "--inspect" if arguments.inspect else "--compare"
    allowed = {"checkpoint", "step", "inspect", "compare", "out_dir"}
    given = sorted(
        f"--{name.replace('_', '-')}"
        for name, value in vars(arguments).items()
        if name not in allowed and value != parser.get_default(name)
    )
    if arguments.inspect and arguments.compare:
        parser.error("--inspect and --compare: choose one")
    if given:
        parser.error(f"{', '.join(given)}: not for {mode}")
    if arguments.inspect and arguments.out_dir is not None:
        parser.error(f"--inspect takes one checkpoint; {arguments.out_dir} is a second one")
    if arguments.compare and arguments.out_dir is None:
        parser.error("--compare takes two checkpoints")


def _run(arguments: argparse.Namespace) -> int:
    """Converts one checkpoint, or all."""
    if arguments.push_to_hub is not None:
        from mtf.hub import check_repo, push

        check_repo(arguments.push_to_hub, as_path(arguments.out_dir))
        if arguments.to not in _HUGGING_FACE or arguments.all:
            other = "--all" if arguments.all else f"--to {arguments.to}"
            raise UserError(f"--push-to-hub: not with {other}, only for one export with --to hf.")
    if arguments.all and arguments.step is not None:
        raise UserError("--step: not with --all, which converts the checkpoints of all steps.")
    if arguments.all:
        from mtf.convert_all import convert_all

        def convert(checkpoint: AnyPath, out_dir: AnyPath) -> int:
            one = {"checkpoint": str(checkpoint), "out_dir": str(out_dir)}
            return _export(argparse.Namespace(**{**vars(arguments), **one}))

        default = "float32" if arguments.to in _HUGGING_FACE else None
        dtype = arguments.dtype or default
        return convert_all(arguments.checkpoint, arguments.out_dir, dtype, convert)
    status = _export(arguments)
    if arguments.push_to_hub is not None and not status:
        push(as_path(arguments.out_dir), arguments.push_to_hub)
    return status


@conversion_as_user_errors()
def _export(arguments: argparse.Namespace) -> int:
    verification.check_options(arguments)
    try:
        if arguments.to in _HUGGING_FACE:
            return _export_huggingface(arguments)
        if arguments.to == "peft":
            return _export_adapters(arguments)
        return _export_state(arguments)
    except verification.VerificationFailed:
        return 1


def _export_state(arguments: argparse.Namespace) -> int:
    """Writes a format that holds a training state."""
    from conversion import huggingface
    from conversion.training_state import StateExport, write_state
    from mtf.inference.opening import open_source

    source = open_source(arguments.checkpoint, arguments.step, ema=arguments.ema)
    hf_only = _HF_ONLY if source.layout == "huggingface" else ("verify", *_HF_ONLY)
    given = [name for name in hf_only if getattr(arguments, name)]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UserError(f"{options}: not for --to {arguments.to}, only for --to hf.")
    verification.check_packages(arguments)
    out_dir = as_path(arguments.out_dir)
    huggingface.check_output(out_dir)
    export = StateExport(
        source,
        arguments.to,
        dtype=arguments.dtype,
        optimizer=arguments.optimizer,
        allow_non_finite=arguments.allow_non_finite,
    )
    name = f"checkpoint_{export.step}"
    named = _STEP_NAME.fullmatch(out_dir.name)
    if named and out_dir.name != name:
        raise UserError(
            f"{out_dir} is the name of a checkpoint of step {int(named[1])}, but the step of "
            f"{export.checkpoint.path} is {export.step}. Name it {name}, or choose another name, "
            f"in which {name} is created."
        )
    _print_source(export.checkpoint)
    with new_directory(out_dir) as directory:
        folder = directory if named else directory / name
        folder.mkdir(exist_ok=True)
        with bytes_bar(export, name):
            write_state(export, folder)
        verification.verify_import(arguments, source, folder)
    files = file_sizes(out_dir)
    parameters = [x for name, x in export.tensors.items() if name.startswith("target/")]
    print(
        f"Wrote {out_dir if named else out_dir / name} ({_FORMATS[arguments.to]}): "
        f"{len(parameters)} tensors, {sum(math.prod(x.shape) for x in parameters):,} parameters, "
        f"{export.dtype_names}, {sum(files.values()):,} bytes in {len(files)} files"
    )
    if export.num_slots:
        print(f"Optimizer state: kept ({export.num_slots} tensors), step {export.step}")
    else:
        dropped = any(name.startswith("state/param_states/") for name in export.checkpoint.tensors)
        reason = "dropped" if dropped else "none in the source"
        print(f"Optimizer state: {reason}; step {export.step}")
    return 0


def _export_adapters(arguments: argparse.Namespace) -> int:
    """Writes the adapters alone; all other formats get them merged into the kernels."""
    from conversion import huggingface, open_checkpoint
    from conversion.peft_writer import write_adapters
    from mtf.inference.opening import is_for_transformers, local_source, read_run_config
    from mtf.sources.hub import copied_model

    others = ("verify", "dtype", "optimizer", *_HF_ONLY)
    if given := [name for name in others if getattr(arguments, name)]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UserError(f"{options}: not for --to peft, which writes float32 adapters.")
    out_dir = as_path(arguments.out_dir)
    huggingface.check_output(out_dir)
    source = local_source(arguments.checkpoint)
    checkpoint = open_checkpoint(source, arguments.step, ema=arguments.ema, merge_adapters=False)
    run = read_run_config(open_checkpoint(source, arguments.step))
    lora = None if run is None else run.model.network.lora
    start = None if run is None else run.start
    start = start and (copied_model(start) or start)
    _print_source(checkpoint)
    with new_directory(out_dir) as directory:
        number = write_adapters(
            checkpoint,
            directory,
            base=start if start is not None and is_for_transformers(start) else None,
            dropout_rate=0.0 if lora is None else lora.dropout_rate,
        )
    print(f"Wrote {out_dir} (LoRA adapters for PEFT): {number:,} parameters, float32")
    print("Load it with:")
    print(
        "  from peft import PeftModel; model = PeftModel.from_pretrained(base, "
        f"{str(out_dir)!r})  # base: {start or 'the fine-tuned model'}, in transformers"
    )
    return 0


def _print_source(checkpoint: Checkpoint) -> None:
    step = "" if checkpoint.step is None else f", step {checkpoint.step}"
    print(f"Reading {checkpoint.source} ({checkpoint.layout}{step})")
    if checkpoint.num_merged:
        print(f"LoRA adapters: merged into {checkpoint.num_merged} kernels")


def _export_huggingface(arguments: argparse.Namespace) -> int:
    from conversion import huggingface

    if arguments.optimizer == "keep":
        others = ", ".join(name for name in _FORMATS if name not in _HUGGING_FACE)
        raise UserError(
            "--optimizer keep: Hugging Face's format has no optimizer state. Use another format "
            f"({others}), or --optimizer drop."
        )
    torch_only = ["--verify"] * (arguments.verify is True)
    torch_only += ["--max-shard-size"] * (arguments.max_shard_size is not None)
    if torch_only and arguments.to == "hf_flax":
        raise UserError(f"{', '.join(torch_only)}: not for --to hf_flax, only for --to hf.")
    verification.check_packages(arguments)
    out_dir = as_path(arguments.out_dir)
    huggingface.check_output(out_dir)
    export = _plan(arguments)
    if isinstance(out_dir, StorePath):
        signals.hint("run the same command again, which replaces the files in OUT_DIR")
        if arguments.verify is None and arguments.to == "hf":
            print("Not verified: OUT_DIR is in a store. --verify writes to this machine first")

    def write(directory: AnyPath) -> None:
        with bytes_bar(export.checkpoint, export.checkpoint.path.name, "target/"):
            huggingface.write_export(export, directory)

    if isinstance(out_dir, StorePath) and not arguments.verify:
        write(out_dir)
    else:  # transformers reads local directories only.
        with new_directory(out_dir) as directory:
            write(directory)
            if arguments.to == "hf":
                verification.verify(arguments, export, directory)
    files = file_sizes(out_dir)
    num_parameters = sum(math.prod(entry.shape) for entry in export.entries)
    print(
        f"Wrote {out_dir}: {len(export.entries)} tensors, "
        f"{num_parameters:,} parameters, {export.dtype}, {sum(files.values()):,} bytes in "
        f"{len(files)} files ({', '.join(files)})"
    )
    if any(name.startswith("state/param_states/") for name in export.checkpoint.tensors):
        print("Optimizer state: dropped; Hugging Face's format has none")
    _print_usage(export, repr(str(out_dir)))
    return 0


def _plan(arguments: argparse.Namespace) -> Export:
    """Returns the export; prints what is read, and the settings that are assumed."""
    from conversion import infer_architecture
    from conversion.families import describe
    from conversion.huggingface import Export
    from conversion.tokenizer import TOKENIZER_FILES, tokenizer_adds_eos
    from mtf.inference.opening import (
        assumed,
        huggingface_vocabulary,
        open_source,
        read_run_config,
        with_huggingface_config,
    )

    checkpoint = open_source(arguments.checkpoint, arguments.step, ema=arguments.ema)
    is_huggingface = checkpoint.layout == "huggingface"
    checkpoint, model_type = with_huggingface_config(checkpoint, arguments.config)
    run = None if model_type else read_run_config(checkpoint, arguments.config)
    vocab_size = infer_architecture(checkpoint).vocab_size
    has_tokenizer = any((checkpoint.path / name).is_file() for name in TOKENIZER_FILES)
    vocabulary: Vocabulary | None = None
    if run is not None:
        described, vocabulary, add_eos = run.described, run.vocabulary, run.inputs_add_eos
    else:
        described = checkpoint.described
        add_eos = tokenizer_adds_eos(checkpoint.path) if is_huggingface else True
        if is_huggingface and arguments.vocabulary is None and has_tokenizer:
            vocabulary = huggingface_vocabulary(checkpoint.path, vocab_size)
    export = Export(
        checkpoint,
        model_type=arguments.model_type or model_type,
        tokenizer=_tokenizer(arguments, vocabulary, vocab_size),
        dtype=arguments.dtype or "float32",
        max_shard_size=_parse_size(arguments.max_shard_size or _MAX_SHARD_SIZE),
        weights="flax" if arguments.to == "hf_flax" else "safetensors",
        inputs_add_eos=add_eos,
        allow_non_finite=arguments.allow_non_finite,
        is_assumed=run is None and not (is_huggingface and has_tokenizer),
        **described,
    )
    _print_source(checkpoint)
    print(f"The network has {describe(export.architecture)}")
    if model_type:
        eos = "" if is_huggingface else ". Inputs are assumed to end with EOS"
        print(f"Settings are those of {arguments.config}{eos}")
    elif run is None and not is_huggingface:
        verified = " --verify makes the same assumptions, so it cannot detect wrong ones."
        verified *= bool(arguments.verify)
        wrong = f"If any of these is wrong, pass --config PATH.{verified}"
        print(f"{assumed(export, add_eos)}. {wrong}")
    return export


def _tokenizer(
    arguments: argparse.Namespace, vocabulary: Vocabulary | None, vocab_size: int
) -> Tokenizer | None:
    """Returns the tokenizer to write: by --vocabulary, else the checkpoint's, else ByT5's."""
    from conversion.sentencepiece_model import read_sentencepiece
    from conversion.tokenizer import Tokenizer, default_extra_ids
    from mtf.text.vocabularies import ByteVocabulary, SentencePieceVocabulary

    chosen = arguments.vocabulary
    if chosen == "none":
        return None
    if chosen not in (None, "byt5"):
        model = read_sentencepiece(Path(chosen).expanduser())
        return Tokenizer(model, default_extra_ids(model, vocab_size))
    if isinstance(vocabulary, ByteVocabulary):
        return Tokenizer(extra_ids=vocabulary.extra_ids)
    if chosen is None and isinstance(vocabulary, SentencePieceVocabulary):
        if not vocabulary.file.is_file():
            raise UserError(
                f"The run's vocabulary {vocabulary.file} does not exist. Pass the file with "
                "--vocabulary PATH.model, or export without a tokenizer with --vocabulary none."
            )
        return Tokenizer(read_sentencepiece(vocabulary.file), vocabulary.num_added_ids)
    return Tokenizer() if "byt5" in (chosen, arguments.model_type) else None


def _print_usage(export: Export, out: str) -> None:
    name, has_tokenizer = export.class_name, export.tokenizer is not None
    if export.weights == "flax":
        name = f"Flax{name}"
    if not has_tokenizer:
        print("No tokenizer was written. To write one, pass its model with --vocabulary.")
    # transformers reads local directories only.
    print("Copy it to this machine, then load it with:" if "://" in out else "Load it with:")
    print(f"  from transformers import {name}; model = {name}.from_pretrained({out})")
    if export.model_type == "umt5" and not export.architecture.logits_via_embedding:
        print(
            "  model.config.tie_word_embeddings = False  # transformers 5 scales umT5's logits by "
            f"{export.architecture.emb_dim}**-0.5 otherwise"
        )
    if has_tokenizer:
        print(
            "  from transformers import AutoTokenizer; "
            f"tokenizer = AutoTokenizer.from_pretrained({out})"
        )
    if not export.inputs_add_eos:
        print(
            "Inputs had no EOS in training, so the tokenizer appends no EOS. Append it to targets "
            "yourself: tokenizer(text_target=text + tokenizer.eos_token)."
            if has_tokenizer
            else "Inputs had no EOS in training. Use tokenizer(…, add_special_tokens=False), or "
            "mtf.load(…, inputs_add_eos=False)."
        )


def _parse_size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?)?B?", text.strip().upper())
    if not match:
        raise UserError(
            f"--max-shard-size {text}: expected a number of bytes, or a size such as 500MB or 5GB."
        )
    return int(float(match[1]) * _UNITS[match[2] or ""])


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
