"""Training data."""

from __future__ import annotations

import fiddle as fdl

from mtf.data.config import SpanCorruption, TextFiles
from mtf.data.vocabularies import ByteVocabulary, SentencePieceVocabulary


def text_files(
    vocabulary: fdl.Config[ByteVocabulary] | fdl.Config[SentencePieceVocabulary],
    *,
    inputs_length: int,
    targets_length: int,
    files: str | tuple[str, ...] | None = None,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
    pack: bool = True,
    seed: int = 0,
) -> fdl.Config[TextFiles]:
    """Text files: documents through span corruption, or pairs of inputs and targets.

    `files` None is the English text that every Python carries.
    """
    return fdl.Config(
        TextFiles,
        vocabulary=vocabulary,
        task_feature_lengths={"inputs": inputs_length, "targets": targets_length},
        files=files,
        span_corruption=fdl.Config(
            SpanCorruption,
            noise_density=noise_density,
            mean_noise_span_length=mean_noise_span_length,
        ),
        pack=pack,
        seed=seed,
    )
