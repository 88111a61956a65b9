"""When a conversion compares the logits of both frameworks; imports neither JAX nor PyTorch."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from mtf.errors import UserError

if TYPE_CHECKING:
    from conversion import Checkpoint
    from conversion.huggingface import Export

# Whether conversions verify what fits in memory without --verify; tests of other things do not.
VERIFY_BY_DEFAULT = True


class VerificationFailed(Exception):
    """The logits of what was written are not those of the source."""


def check_options(arguments: argparse.Namespace) -> None:
    """Raises UserError if options contradict each other; sets `arguments.verify`, None: default."""
    if arguments.verify_by_layer and arguments.verify is False:
        raise UserError("--verify-by-layer and --no-verify contradict each other; choose one.")
    if arguments.verify_by_layer or not VERIFY_BY_DEFAULT:
        arguments.verify = arguments.verify_by_layer or bool(arguments.verify)


def check_packages(arguments: argparse.Namespace) -> None:
    """Raises UserError if --verify is given without the packages that it needs."""
    if arguments.verify and (missing := _not_installed()):
        raise UserError(
            f"--verify needs {missing}; run: pip install 'mtf-jax[torch]' (or leave out --verify)."
        )


def verify(arguments: argparse.Namespace, export: Export, directory: Path) -> None:
    """Compares `directory`, a Hugging Face model, with an export's checkpoint; prints the result.

    Does nothing if it is turned off, or by default impossible or large. Raises VerificationFailed.
    """
    if not _is_wanted(arguments):
        return
    by_default = arguments.verify is None
    if by_default and arguments.allow_non_finite:
        print("Not verified: NaN and infinity are allowed")
        return
    from mtf.verify import compare, why_by_layer

    reason = "as requested" if arguments.verify_by_layer else why_by_layer(export)
    if by_default and reason:
        print(f"Not verified: {reason}. --verify compares layer by layer")
        return
    if reason:
        print(f"Verifying layer by layer: {reason}", flush=True)
    passed, report = compare(export, directory, by_layer=reason is not None)
    print(report)
    if not passed:
        raise VerificationFailed


def verify_import(arguments: argparse.Namespace, source: Checkpoint, written: Path) -> None:
    """Compares a written checkpoint with its source, if that is a Hugging Face model."""
    if source.layout != "huggingface" or not _is_wanted(arguments):
        return
    if not isinstance(source.path, Path):
        if arguments.verify:
            raise UserError(f"--verify: {source.path} is not on this machine; copy it first.")
        print("Not verified: CHECKPOINT is not on this machine")
        return
    from mtf.verify import of_import

    verify(arguments, of_import(source, written, arguments.dtype), source.path)


def _is_wanted(arguments: argparse.Namespace) -> bool:
    """Returns whether to verify; prints why not if packages are missing."""
    if arguments.verify is None and (missing := _not_installed()):
        print(f"Not verified: {missing} not installed (pip install 'mtf-jax[torch]')")
        return False
    return arguments.verify is not False


def _not_installed() -> str:
    """Returns the packages that verification lacks."""
    needed = ("torch", "transformers")
    return " and ".join(name for name in needed if not importlib.util.find_spec(name))
