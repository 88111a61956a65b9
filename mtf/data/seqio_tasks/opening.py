"""Finds tasks that are registered with SeqIO, without importing SeqIO if there are none."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from mtf.base.extras import import_extra
from mtf.data.sources.datasets import SEQIO
from mtf.data.tasks.mixtures import Mixture
from mtf.data.tasks.task import Task
from mtf.data.text.vocabularies import Vocabulary

if TYPE_CHECKING:
    from mtf.data.seqio_tasks.custom import Scorer

PURPOSE = "SeqIO's pipeline, unlike training from a token cache (data.loader='cache'),"


def import_seqio() -> ModuleType:
    """Returns the module `seqio`; raises UserError if it is not installed."""
    return import_extra("seqio", PURPOSE, "seqio")


def find_mixture(name: str, vocabulary: Vocabulary, module: str | None = None) -> Mixture | None:
    """Returns the SeqIO task or mixture that is registered as `name`, or None if there is none."""
    if "seqio" not in sys.modules:
        return None
    from mtf.data.seqio_tasks import custom

    return custom.find_mixture(name, vocabulary, module)


def scorer(
    task: Task, split: str, lengths: Mapping[str, int], limit: int | None = None
) -> Scorer | None:
    """Returns the scorer of a SeqIO task that has metrics, or None for any other task.

    Raises UserError if all metrics need the model's scores for the targets instead of predicted
    texts.
    """
    if task.dataset != SEQIO:
        return None
    from mtf.data.seqio_tasks import custom

    return custom.scorer(task, split, lengths, limit)
