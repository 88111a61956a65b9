"""What the commands share: parsers, options, and how errors and signals become exit statuses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from mtf import signals
from mtf.errors import RunError, UserError

if TYPE_CHECKING:
    from mtf.tasks.mixtures import Mixture
    from mtf.text.vocabularies import Vocabulary

_NUM_T5_SENTINELS = 100


def new_parser(command: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Returns a parser for `python -m mtf.COMMAND`."""
    return argparse.ArgumentParser(
        prog=f"python -m mtf.{command}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def exit_status(run: Callable[[], int | None], *, only_shows: bool) -> int:
    """Runs a command and returns its exit status; what stops it is told in one line on stderr.

    0: done, or what `run` returns. 1: `RunError`. 2: `UserError`. 128 + N: signal N. Any other
    exception is a defect and passes through.

    Args:
      run: the command.
      only_shows: whether the command is done when its reader, such as `head`, closes the pipe. A
        command that writes something is not: the error passes through.
    """
    try:
        status = run() or 0
        sys.stdout.flush()
        return status
    except UserError as error:
        # Fiddle appends its context to what is raised under fdl.build.
        print(f"error: {getattr(error, 'proxy_base_exception', error)}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except signals.Stopped as stopped:
        print(signals.farewell(stopped.number), file=sys.stderr)
        return 128 + stopped.number
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if not only_shows:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def add_source_options(group: argparse._ActionsContainer) -> None:
    """Adds --data-dir and --templates."""
    add = group.add_argument
    where = "DATASET[/SUBSET]/SPLIT.parquet (default: MTF_DATA_DIR, else the Hugging Face hub)"
    add("--data-dir", metavar="DIR", help=where)
    add("--templates", metavar="PATH", help="promptsource's, archive or directory (MTF_PROMPTS)")


def add_vocabulary_options(group: argparse._ActionsContainer) -> None:
    """Adds --vocabulary and --extra-ids."""
    add = group.add_argument
    file = "SentencePiece model file, or ByT5's bytes (default: the original's, downloaded once)"
    add("--vocabulary", metavar="PATH.model|byt5", help=file)
    sentinels = "sentinels behind the model's pieces, unless they are pieces (default: 100)"
    add("--extra-ids", type=int, metavar="N", help=sentinels)


def chosen_vocabulary(options: argparse.Namespace, original: str) -> Vocabulary:
    """Returns the vocabulary that the options name, else the `original` of a mixture: "t5", "mt5".

    Raises:
      UserError: no vocabulary is named, and the original cannot be downloaded.
    """
    # Not at the top: --help does not need it.
    from mtf.text.vocabularies import RELEASED_MODELS, ByteVocabulary, SentencePieceVocabulary

    if options.vocabulary == "byt5":
        return ByteVocabulary(options.extra_ids or 0)
    path = options.vocabulary or RELEASED_MODELS.get(original)
    if path is None:
        raise UserError(f"--vocabulary is missing: the {original} model has no public address")
    extra_ids = _NUM_T5_SENTINELS if options.extra_ids is None else options.extra_ids
    return SentencePieceVocabulary(path, extra_ids)


def chosen_mixture(options: argparse.Namespace) -> tuple[Mixture, Vocabulary]:
    """Returns the mixture that the options name, and its vocabulary (see `chosen_vocabulary`)."""
    from mtf.tasks.mixtures import mixture
    from mtf.tasks.prompts.templates import load_templates

    templates = load_templates(options.templates) if options.templates else None
    chosen = mixture(options.mixture, templates)
    return chosen, chosen_vocabulary(options, chosen.vocabulary)
