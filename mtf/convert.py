"""`python -m mtf.convert CHECKPOINT OUT_DIR --to hf`: a checkpoint in, another form of it out."""

from __future__ import annotations

from mtf import signals

if __name__ == "__main__":
    signals.listen()  # before anything else is imported

import argparse
import importlib.util
import logging
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from mtf.command import exit_status, new_parser
from mtf.errors import UserError, conversion_as_user_errors

if TYPE_CHECKING:
    from conversion import Checkpoint
    from conversion.tokenizer import Tokenizer

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}

_EPILOG = """\
examples:
  python -m mtf.convert runs/quickstart-20260101-120000 exported --to hf --verify
  python -m mtf.convert t5_1_1_small/checkpoint_1000000 exported --to hf \\
      --vocabulary sentencepiece.model

OUT_DIR appears at the end and as a whole, after --verify has passed. If anything fails it is not
made. Exit status: 0 done, 1 --verify found other numbers, 2 the input cannot be converted.
"""


class _VerificationFailed(Exception):
    """The export computes other numbers than the checkpoint."""


def main(argv: Sequence[str] | None = None) -> int:
    """Converts a checkpoint as the command line says; returns the exit status."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(format="%(message)s")

    def run() -> int:
        if arguments.verify:
            _require_torch()
        try:
            with conversion_as_user_errors():
                return _export(arguments)
        except _VerificationFailed:
            return 1

    return exit_status(run, only_shows=False)


def _parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "convert",
        "Turns a checkpoint (ours, T5X's zarr+msgpack, T5X's Orbax) into another form.",
        _EPILOG,
    )
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", type=Path, help="a run directory, or checkpoint_STEP")
    add("out_dir", metavar="OUT_DIR", type=Path, help="must not exist, or be empty")
    add("--to", required=True, choices=["hf"], help="hf: Hugging Face, for PyTorch")
    add("--step", type=int, metavar="N", help="which checkpoint of several (default: the latest)")
    add("--verify", action="store_true", help="compare float32 logits in both frameworks")
    add(
        "--vocabulary",
        metavar="PATH.model|byt5|none",
        help="SentencePiece model file, or ByT5's bytes (default: the run directory's)",
    )
    add(
        "--config",
        metavar="PATH",
        help="run directory or config.json of the run that wrote the checkpoint (default: that of "
        "the run directory it lies in)",
    )
    add(
        "--model-type",
        choices=["t5", "mt5", "byt5"],
        help="default: mt5 for mT5's vocabulary size 250112, else t5",
    )
    add("--dtype", default="float32", help="float32 (default) or bfloat16")
    add("--max-shard-size", default="5GB", metavar="SIZE", help="of a file (default: %(default)s)")
    return parser


def _require_torch() -> None:
    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    if missing:
        raise UserError(
            f"--verify needs {' and '.join(missing)}: pip install 'mtf-jax[torch]' "
            "(or leave --verify out)."
        )


def _export(arguments: argparse.Namespace) -> int:
    from conversion import huggingface, infer_architecture, open_checkpoint

    huggingface.check_output(arguments.out_dir)
    checkpoint = open_checkpoint(arguments.checkpoint, arguments.step)
    known = _known(checkpoint, arguments.vocabulary, arguments.config)
    tokenizer = _tokenizer(arguments, known, infer_architecture(checkpoint).vocab_size)
    export = huggingface.Export(
        checkpoint,
        model_type=arguments.model_type,
        tokenizer=tokenizer,
        dtype=arguments.dtype,
        max_shard_size=_parse_size(arguments.max_shard_size),
        inputs_add_eos=known.inputs_add_eos,
        **known.network,
    )
    step = "" if checkpoint.step is None else f", step {checkpoint.step}"
    print(f"Reading {checkpoint.path} ({checkpoint.layout}{step})")
    if not known.is_described:
        from mtf.inference.opening import assumed

        network = SimpleNamespace(
            mlp_activations=export.architecture.mlp_activations,
            relative_attention_max_distance=export.relative_attention_max_distance,
            dropout_rate=export.dropout_rate,
        )
        verified = " --verify assumes the same." if arguments.verify else ""
        print(f"{assumed(network, known.inputs_add_eos)}. If not: --config PATH.{verified}")
    with (
        huggingface.new_directory(arguments.out_dir) as directory,
        signals.removed_on_stop(directory),
    ):
        files = huggingface.write_export(export, directory)
        num_bytes = sum((directory / name).stat().st_size for name in files)
        if arguments.verify:
            from mtf import verify

            result = verify.compare(export, directory)
            print(result.report())
            if not result.passed:
                raise _VerificationFailed  # which makes `new_directory` drop what was written
    num_parameters = sum(math.prod(entry.shape) for entry in export.entries)
    print(
        f"Wrote {arguments.out_dir}: {len(export.entries)} tensors, "
        f"{num_parameters:,} parameters, {export.dtype}, {num_bytes:,} bytes in "
        f"{len(files)} files ({', '.join(files)})"
    )
    if tokenizer is None:
        print("No tokenizer: none is known for this checkpoint; name one with --vocabulary.")
    print("Load it with:")
    name, out = export.class_name, repr(str(arguments.out_dir))
    print(f"  from transformers import {name}; model = {name}.from_pretrained({out})")
    if tokenizer is not None:
        print(
            "  from transformers import AutoTokenizer; "
            f"tokenizer = AutoTokenizer.from_pretrained({out})"
        )
    if not known.inputs_add_eos and tokenizer is None:
        print(
            "Inputs had no end of sequence in training: use "
            "tokenizer(…, add_special_tokens=False), or mtf.load(…, inputs_add_eos=False)."
        )
    elif not known.inputs_add_eos:
        print(
            "Inputs had no end of sequence in training, so the tokenizer appends none. Targets "
            "had: tokenizer(text_target=text + tokenizer.eos_token)."
        )
    return 0


class _Known(NamedTuple):
    """What is known of a checkpoint that its tensors do not tell.

    Attributes:
      network: values for `Export`.
      vocabulary: one of `mtf.text.vocabularies`.
      inputs_add_eos: whether inputs ended with end of sequence in training.
      is_described: whether anything but the tensors says so; else it is assumed.
    """

    network: dict[str, Any]
    vocabulary: Any
    inputs_add_eos: bool = True
    is_described: bool = True


def _known(checkpoint: Checkpoint, vocabulary: str | None, config: str | None) -> _Known:
    """Reads the config of the run directory, or what Hugging Face's directory says."""
    from conversion.tokenizer import tokenizer_adds_eos
    from mtf.inference.opening import huggingface_vocabulary, read_run_config

    run = read_run_config(checkpoint, config)
    if run is not None:
        return _Known(run.described, run.vocabulary, run.inputs_add_eos)
    if checkpoint.layout != "huggingface":
        return _Known(checkpoint.described, None, is_described=False)
    add_eos = tokenizer_adds_eos(checkpoint.path)
    if vocabulary is not None:
        return _Known(checkpoint.described, None, add_eos)
    num_rows = checkpoint.tensors["target/token_embedder/embedding"].shape[0]
    found = huggingface_vocabulary(checkpoint.path, num_rows)
    return _Known(checkpoint.described, found, add_eos)


def _tokenizer(arguments: argparse.Namespace, known: _Known, vocab_size: int) -> Tokenizer | None:
    """Returns the tokenizer to write: the one asked for, else the run's, else ByT5's."""
    from conversion.sentencepiece_model import read_sentencepiece
    from conversion.tokenizer import Bytes, SentencePieces, default_extra_ids
    from mtf.text.vocabularies import ByteVocabulary, SentencePieceVocabulary

    asked = arguments.vocabulary
    if asked == "none":
        return None
    if asked == "byt5":
        same = isinstance(known.vocabulary, ByteVocabulary)
        return Bytes(known.vocabulary.extra_ids if same else 0)
    if asked is not None:
        model = read_sentencepiece(Path(asked).expanduser())
        return SentencePieces(model, default_extra_ids(model, vocab_size))
    if isinstance(known.vocabulary, ByteVocabulary):
        return Bytes(known.vocabulary.extra_ids)
    if isinstance(known.vocabulary, SentencePieceVocabulary):
        path = known.vocabulary.file
        if not path.is_file():
            raise UserError(
                f"The run's vocabulary {path} is not there; say where it is with --vocabulary "
                "PATH.model, or export without a tokenizer by --vocabulary none."
            )
        return SentencePieces(read_sentencepiece(path), known.vocabulary.num_added_ids)
    return Bytes() if arguments.model_type == "byt5" else None


def _parse_size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?)?B?", text.strip().upper())
    if not match:
        raise UserError(f"--max-shard-size {text}: expected bytes, or a size such as 500MB or 5GB.")
    return int(float(match[1]) * _UNITS[match[2] or ""])


if __name__ == "__main__":
    sys.exit(signals.ending(main()))
