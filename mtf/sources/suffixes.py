"""What the suffix of a file's name says about its lines."""

from __future__ import annotations

TEXT_SUFFIXES = (".txt", ".txt.gz")
PAIR_SUFFIXES = (".tsv", ".tsv.gz")
JSON_SUFFIXES = (".jsonl", ".jsonl.gz")
SUFFIXES = (*TEXT_SUFFIXES, *JSON_SUFFIXES, *PAIR_SUFFIXES)
