"""Parsers, options and exit statuses that the commands share."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mtf import signals
from mtf.errors import RunError, UserError
from mtf.storage_errors import StorageError

if TYPE_CHECKING:
    from mtf.tasks.mixtures import Mixture
    from mtf.text.vocabularies import Vocabulary

_NUM_T5_SENTINELS = 100


def new_parser(
    command: str, description: str, epilog: str, *, add_help: bool = True
) -> argparse.ArgumentParser:
    """Returns a parser for `python -m mtf.COMMAND`."""
    return argparse.ArgumentParser(
        prog=f"python -m mtf.{command}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=add_help,
    )


def exit_status(run: Callable[[], int | None], *, only_shows: bool) -> int:
    """Runs a command and returns its exit status; reports errors and signals in a line on stderr.

    The status is 0 or what `run` returns; 1 for a `RunError`, 2 for a `UserError`, 128 + N for
    signal N. Any other exception is a bug and propagates. If the command `only_shows` something, a
    closed pipe (as by `head`) is no error.
    """
    try:
        status = run() or 0
        sys.stdout.flush()
        return status
    except UserError as error:
        # fdl.build appends Fiddle's context to the message.
        print(f"error: {getattr(error, 'proxy_base_exception', error)}", file=sys.stderr)
        return 2
    except StorageError as error:
        print(f"error: {error}", file=sys.stderr)
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
    except OSError as error:
        if not only_shows or not _is_of_output(error):
            raise
        # Otherwise Python would try to write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 0
        print(f"error: the output cannot be written: {error.strerror}.", file=sys.stderr)
        return 1


def _is_of_output(error: OSError) -> bool:
    """Returns whether the error is about stdout: a closed pipe or terminal, or a full disk."""
    is_full_or_closed = error.errno in (errno.ENOSPC, errno.EIO) and error.filename is None
    return isinstance(error, BrokenPipeError) or is_full_or_closed


def add_change_options(parser: argparse.ArgumentParser) -> None:
    """Adds --set, --unset and --apply, whose (kind, text) are in `overrides` in the order given."""
    applied = "change the config (options are applied in the order given)"
    change: Any = parser.add_argument_group(applied)
    several = {"nargs": "+", "action": "extend"}
    for kind, number, metavar, text in (
        ("set", several, "PATH=VALUE", "set a field; +PATH=VALUE adds a key to a dict"),
        ("unset", several, "PATH", "restore a field's default, or remove a key of a dict"),
        ("apply", {"action": "append"}, "FIDDLER[(kw=…)]", "apply a function to the config"),
    ):
        change.add_argument(
            f"--{kind}",
            dest="overrides",
            type=lambda text, kind=kind: (kind, text),
            metavar=metavar,
            help=text,
            **number,
        )
    parser.set_defaults(overrides=[])


def add_source_options(group: argparse._ActionsContainer) -> None:
    """Adds --module, --data-dir and --templates."""
    add = group.add_argument
    module = "import a module that registers tasks or mixtures of your own, e.g. my.tasks"
    add("--module", metavar="MODULE", help=module)
    mirror = (
        "directory of local datasets, DATASET[/SUBSET]/SPLIT.parquet (default: $MTF_DATA_DIR, "
        "otherwise the Hugging Face hub)"
    )
    add("--data-dir", metavar="DIR", help=mirror)
    templates = (
        "promptsource's archive or directory (default: $MTF_PROMPTS, otherwise the templates that "
        "`python -m mtf.prompts fetch` downloaded)"
    )
    add("--templates", metavar="PATH", help=templates)


def add_dataset_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that define a task in place; see `DatasetTaskConfig`."""
    add = parser.add_argument_group("a dataset, used as the task MIXTURE").add_argument
    add("--dataset", metavar="NAME", help="dataset on the Hugging Face hub or in --data-dir")
    add("--subset", metavar="NAME", help="subset (configuration) of the dataset")
    files = "local files instead of a dataset: train=a.jsonl validation='b*.parquet'"
    add("--files", nargs="+", metavar="SPLIT=PATH", help=files)
    column = "a column, or a Jinja template over columns: '{{question}} {{context}}'"
    for name in ("inputs", "targets"):
        add(f"--{name}", metavar="COLUMN|TEMPLATE", help=column)
    add("--answer-choices", nargs="+", metavar="TEXT", help="all possible targets")
    add("--metrics", nargs="+", default=(), metavar="NAME", help="metrics of decoded text")


def add_vocabulary_options(group: argparse._ActionsContainer) -> None:
    """Adds --vocabulary and --extra-ids."""
    add = group.add_argument
    file = (
        "SentencePiece model, or byt5 for bytes (default: the mixture's own model, downloaded once)"
    )
    add("--vocabulary", metavar="PATH.model|byt5", help=file)
    sentinels = (
        "number of sentinels to add, unless the model already contains them (default: 100; byt5: 0)"
    )
    add("--extra-ids", type=int, metavar="N", help=sentinels)


def chosen_vocabulary(options: argparse.Namespace, original: str) -> Vocabulary:
    """Returns the vocabulary of the options, by default the released one of `original`."""
    # Imported here because --help does not need it.
    from mtf.text.vocabularies import RELEASED_MODELS, ByteVocabulary, SentencePieceVocabulary

    if options.vocabulary == "byt5":
        return ByteVocabulary(options.extra_ids or 0)
    path = options.vocabulary or RELEASED_MODELS.get(original)
    if path is None:
        raise UserError(
            f"--vocabulary is missing: the vocabulary {original} is not public; pass its model file"
        )
    extra_ids = _NUM_T5_SENTINELS if options.extra_ids is None else options.extra_ids
    return SentencePieceVocabulary(path, extra_ids)


def chosen_mixture(options: argparse.Namespace) -> tuple[Mixture, Vocabulary]:
    """Returns the mixture of the options, and its vocabulary."""
    if options.dataset is not None or options.files is not None:
        chosen = _dataset_mixture(options)
        return chosen, chosen_vocabulary(options, chosen.vocabulary)
    import_module(options)
    from mtf.seqio import own
    from mtf.tasks.mixtures import mixture
    from mtf.tasks.prompts.templates import load_templates
    from mtf.tasks.registry import is_registered

    if options.module is not None and not is_registered(options.mixture):
        vocabulary = chosen_vocabulary(options, "t5")
        found = own.find_mixture(options.mixture, vocabulary, options.module)
        if found is not None:
            return found, vocabulary
    templates = load_templates(options.templates) if options.templates else None
    chosen = mixture(options.mixture, templates)
    return chosen, chosen_vocabulary(options, chosen.vocabulary)


def import_module(options: argparse.Namespace) -> None:
    """Imports the module of --module."""
    if options.module is not None:
        from mtf.tasks import registry

        registry.import_module(options.module, "--module")


def _dataset_mixture(options: argparse.Namespace) -> Mixture:
    from mtf.data.mixtures import dataset_mixture
    from mtf.data.settings import DatasetTaskConfig
    from mtf.evaluation.metrics import find

    files = None
    if options.files is not None:
        files = dict(text.partition("=")[::2] for text in options.files)
        wrong = [text for text in options.files if not all(text.partition("=")[::2])]
        if wrong:
            raise UserError(f"--files {wrong[0]}: expected SPLIT=PATH, such as train=a.jsonl")
    for metric in options.metrics:
        find(metric)
    for name in ("inputs", "targets"):
        if not getattr(options, name):
            raise UserError(f"--{name} is missing; expected a column or a template of --dataset")
    settings = DatasetTaskConfig(
        inputs=options.inputs,
        targets=options.targets,
        dataset=options.dataset,
        subset=options.subset,
        files=files,
        metrics=tuple(options.metrics),
        answer_choices=None if options.answer_choices is None else tuple(options.answer_choices),
    )
    splits = [options.split] if isinstance(options.split, str) else options.split or ()
    return dataset_mixture(options.mixture, settings, *splits)
