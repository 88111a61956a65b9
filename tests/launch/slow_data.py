"""Recipes whose data comes late or never. Run by test_hangs.py and test_local.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import jax

import recipes
from mtf.data import loaders
from mtf.inference.batch import BatchInference
from mtf.jobs import Evaluate, Train

_make_train_iterator = loaders.make_train_iterator


class _Late:
    """Batches before each of which `wait` is called with the number of those before it."""

    def __init__(self, batches: Any, wait: Callable[[int], None]) -> None:
        self._batches, self._wait, self._number = batches, wait, 0

    def __next__(self) -> Any:
        self._wait(self._number)
        self._number += 1
        return next(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _with(wait: Callable[[int], None]) -> fdl.Config[Train]:
    def make(*args: Any, **kwargs: Any) -> Any:
        return _Late(_make_train_iterator(*args, **kwargs), wait)

    loaders.make_train_iterator = make  # type: ignore[assignment]
    return recipes.pretrain_text()


def waits_forever(process: int) -> fdl.Config[Train]:
    """After four batches, this process gets no other."""

    def wait(number: int) -> None:
        if number == 4 and jax.process_index() == process:
            threading.Event().wait()

    return _with(wait)


def is_late(process: int, seconds: float) -> fdl.Config[Train]:
    """This process opens its data late, and gets the first batch late."""

    def wait(number: int) -> None:
        if number == 0 and jax.process_index() == process:
            threading.Event().wait(seconds)

    config = _with(wait)
    make = loaders.make_train_iterator

    def make_late(*args: Any, **kwargs: Any) -> Any:
        wait(0)
        return make(*args, **kwargs)

    loaders.make_train_iterator = make_late
    return config


def waits(seconds: float) -> fdl.Config[Train]:
    """Each batch takes so many seconds."""
    return _with(lambda _: threading.Event().wait(seconds) and None)


def evaluation_waits_forever(process: int) -> fdl.Config[Evaluate]:
    """This process never gets the tokens of the first inputs."""
    encode = BatchInference._encode

    def wait(*args: Any, **kwargs: Any) -> Any:
        if jax.process_index() == process:
            threading.Event().wait()
        return encode(*args, **kwargs)

    BatchInference._encode = wait  # type: ignore[method-assign]
    return recipes.evaluate(checkpoint="run")
