"""Finds the gin parameter of a config field; does not need gin-config."""

from __future__ import annotations

from collections.abc import Iterator

from mtf.cli.gin.rows import Row, Section
from mtf.cli.gin.t5x_table import T5X

# Name of a job class → section for the corresponding T5X function.
_ROOTS = {"Train": "train", "Evaluate": "evaluate", "Infer": "infer"}
# Section → class that defines its fields, for sections that share field names with each other.
_OWNERS = {
    "adafactor": "AdafactorConfig",
    "": "AdamWConfig",  # gin's AdamW becomes that of optax
    "pieces": "SentencePieceVocabulary",
    "bytes": "ByteVocabulary",
}


def binding_of(path: str, job: str, owner: str) -> str | None:
    """Returns a field's gin name, such as `trainer.Trainer.num_microbatches`; None if it has none.

    `job` and `owner` are the class names of the job and of the component that defines the field.
    """
    rows = [
        (f"{section.name}.{row.parameter}", bool(row.parts))
        for name, section in _sections(job)
        for row in section.rows
        if _path(row, job) == path
        and (owner not in _OWNERS.values() or _OWNERS.get(name, owner) == owner)
    ]
    # Parameters that take the value itself precede parameters that take a reference.
    return min(rows, key=lambda row: row[1])[0] if rows else None


def _sections(job: str) -> Iterator[tuple[str, Section]]:
    """Yields (name, section) pairs for a job's function and all parts to which it may refer."""
    names = [_ROOTS[job]] if job in _ROOTS else []
    for name in names:  # The loop appends to `names`.
        yield name, T5X[name]
        for row in T5X[name].rows:
            names += [part for part in (row.parts or {}).values() if part not in names]


def _path(row: Row, job: str) -> str | None:
    if row.path is None or job != "Train" or not row.path.startswith("decoding."):
        return row.path
    return f"evaluator.{row.path}"
