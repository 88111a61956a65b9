"""Which vocabulary a checkpoint was trained with. Imports no jax."""

from __future__ import annotations

import logging
from pathlib import Path

import conversion
from conversion.sentencepiece_model import read_sentencepiece
from conversion.tokenizer import bytes_of, default_extra_ids
from mtf.errors import UserError, conversion_as_user_errors, did_you_mean
from mtf.text.remote import is_remote, local_copy
from mtf.text.vocabularies import (
    RELEASED_MODELS,
    ByteVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
)

_logger = logging.getLogger(__name__)

# Rows of the embedding → the released models that have so many.
_RELEASED_SIZES = {32128: "t5", 250112: "mt5", 384: "byt5"}
# An embedding has some rows more than there are ids, so that devices divide it; at most so many.
_MAX_SPARE_ROWS = 1024


def checkpoint_vocabulary(
    checkpoint: conversion.Checkpoint,
    asked: Vocabulary | str | None,
    of_run: Vocabulary | None,
    num_rows: int,
    default: Vocabulary | None = None,
) -> Vocabulary:
    """Returns the vocabulary asked for, or the checkpoint's own, or the one that its size tells.

    Args:
      checkpoint: opened.
      asked: a vocabulary, or the name of one (`named_vocabulary`).
      of_run: that of the run directory, where there is one.
      num_rows: of the embedding.
      default: what a checkpoint without a vocabulary of its own is taken to have.

    Raises:
      UserError: none is known, or it has more ids than rows, or, where it was named, far fewer.
    """
    if asked is not None:
        found = named_vocabulary(asked, num_rows) if isinstance(asked, str) else asked
    elif of_run is not None:
        found = of_run
        try:
            found.vocab_size  # noqa: B018 - reads the model
        except UserError as error:
            raise UserError(
                f"{error} {checkpoint.path} was trained with it, by its run's config; if it lies "
                "elsewhere, name it with vocabulary=PATH."
            ) from error
    elif checkpoint.layout == "huggingface":
        try:
            found = huggingface_vocabulary(checkpoint.path, num_rows)
        except UserError:
            if default is None:
                raise
            found = default
    elif default is not None:
        found = default
    else:
        found = _by_size(checkpoint.path, num_rows)
    num_ids = found.vocab_size
    if num_ids > num_rows or (asked is not None and num_rows - num_ids > _MAX_SPARE_ROWS):
        raise UserError(
            f"The vocabulary has {num_ids} ids, but {checkpoint.path} has an embedding of "
            f"{num_rows} rows: it was trained with another vocabulary."
        )
    return found


@conversion_as_user_errors()
def named_vocabulary(name: str, num_rows: int) -> Vocabulary:
    """Returns the vocabulary of a released model by its name, or of a SentencePiece model file.

    Args:
      name: "t5" or "mt5" (downloaded at first use), "byt5", or the path of a file.
      num_rows: of the embedding; without room for T5's 100 sentinels, or with sentinels among its
        pieces, a model gets none.

    Raises:
      UserError: there is no such file, or it is not a SentencePiece model.
    """
    if name == "byt5":
        return ByteVocabulary()
    path = RELEASED_MODELS.get(name, name)
    file = local_copy(path) if is_remote(path) else Path(path).expanduser()
    if not file.is_file():
        known = (*RELEASED_MODELS, "byt5")
        raise UserError(
            f"vocabulary: {name!r} is neither a SentencePiece model file nor one of "
            f"{', '.join(known)}.{did_you_mean(name, known)}"
        )
    return SentencePieceVocabulary(path, default_extra_ids(read_sentencepiece(file), num_rows))


@conversion_as_user_errors()
def huggingface_vocabulary(directory: Path, num_rows: int) -> Vocabulary:
    """Returns the vocabulary of a Hugging Face directory: its `spiece.model`, or ByT5's bytes.

    Raises:
      UserError: it has neither; says what to do.
    """
    found = bytes_of(directory)
    if found is not None:
        return ByteVocabulary(found.extra_ids)
    if (directory / "spiece.model").is_file():
        return named_vocabulary(str(directory / "spiece.model"), num_rows)
    raise UserError(
        f"{directory} has no spiece.model (nor ByT5's tokenizer_config.json), so its vocabulary is "
        "not known. Copy it there from the model it was made of, or name it with vocabulary=: "
        "'t5', 'mt5', 'byt5' or a SentencePiece model file."
    )


def _by_size(path: Path, num_rows: int) -> Vocabulary:
    name = _RELEASED_SIZES.get(num_rows)
    if name is None:
        raise UserError(
            f"The vocabulary of {path} is not known: it is in no run directory, and no released "
            f"model has an embedding of {num_rows} rows. Name it with vocabulary=: 't5', 'mt5', "
            "'byt5' or a SentencePiece model file."
        )
    _logger.warning(
        "%s has an embedding of %d rows, so its vocabulary is taken to be %s's; name another with "
        "vocabulary=.",
        path,
        num_rows,
        name,
    )
    return named_vocabulary(name, num_rows)
