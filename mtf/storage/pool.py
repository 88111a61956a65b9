"""Runs jobs that read from a store in threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class ReadingPool(ThreadPoolExecutor):
    """A pool of threads that starts no job after one has failed; later jobs raise the same error.

    Otherwise, each thread would start another job before the error is raised in the main thread,
    and a job takes almost a minute to fail if a store does not answer.
    """

    _error: BaseException | None = None

    def submit(self, job: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedules a job; see `ThreadPoolExecutor.submit`."""

        def run() -> Any:
            if self._error is not None:
                raise self._error
            try:
                return job(*args, **kwargs)
            except BaseException as error:
                self._error = error
                raise

        return super().submit(run)
