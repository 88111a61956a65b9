"""Finds tasks that are registered with SeqIO, without importing SeqIO if there are none."""

from __future__ import annotations

import sys
from types import ModuleType

from mtf.base.extras import import_extra
from mtf.data.tasks.mixtures import Mixture
from mtf.data.text.vocabularies import Vocabulary

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
