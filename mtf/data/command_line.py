"""Options that `mtf.cache` and `mtf.data` share."""

from __future__ import annotations

import argparse

from mtf.errors import UserError
from mtf.text.vocabularies import (
    RELEASED_MODELS,
    ByteVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
)

_NUM_T5_SENTINELS = 100


def add_vocabulary_options(group: argparse._ActionsContainer) -> None:
    """Adds --vocabulary and --extra-ids."""
    group.add_argument(
        "--vocabulary",
        metavar="PATH.model|byt5",
        help="SentencePiece model file, or ByT5's bytes (default: the original's, downloaded once)",
    )
    group.add_argument(
        "--extra-ids",
        type=int,
        metavar="N",
        help="sentinels behind the model's pieces, unless they are pieces (default: 100)",
    )


def chosen_vocabulary(options: argparse.Namespace, original: str) -> Vocabulary:
    """Returns the vocabulary that the options name, or the one that a mixture is made for.

    Args:
      options: what `add_vocabulary_options` has parsed.
      original: "t5", "mt5", …: `Mixture.vocabulary`.

    Raises:
      UserError: no vocabulary is named, and the mixture is made for none that can be downloaded.
    """
    if options.vocabulary == "byt5":
        return ByteVocabulary(options.extra_ids or 0)
    path = options.vocabulary or RELEASED_MODELS.get(original)
    if path is None:
        raise UserError(f"--vocabulary is missing: the {original} model has no public address")
    extra_ids = _NUM_T5_SENTINELS if options.extra_ids is None else options.extra_ids
    return SentencePieceVocabulary(path, extra_ids)
