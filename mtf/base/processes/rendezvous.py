"""Checks that all processes of a run do the same job, and ends all of them if one fails.

This module uses JAX's coordination service, which runs in process 0. The service detects dead
processes by missing heartbeats. Its key-value store holds the data that the processes compare.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtf.base import run_end, signals
from mtf.base.errors import UserError, with_causes
from mtf.base.processes.process_info import ProcessInfo

_Work = Callable[[], int]
Facts = Mapping[str, Sequence[str]]

# Seconds to wait for the other processes at the start.
PATIENCE = 300
# Seconds without a heartbeat after which a process counts as dead, and seconds between checks.
_SILENCE, _PERIOD = 20, 5
# Seconds to wait, after another process has died, for an error in this process.
_SECONDS_TO_FAIL = 1.0
_IS_LATE = "DEADLINE_EXCEEDED"
_FOREVER = 10**6


class Rendezvous:
    """Connects this process to the other processes of its run, through JAX.

    Args:
      info: how this process connects to the others.
      patience: the number of seconds to wait for the others to connect. After that, this process
        ends with exit status 2.

    Raises:
      UserError: JAX cannot detect the other processes.
    """

    def __init__(self, info: ProcessInfo, patience: float = PATIENCE) -> None:
        import jax
        from jax._src.distributed import global_state  # The only access to the key-value store.

        self._error = jax.errors.JaxRuntimeError
        timer = threading.Timer(patience, _end_alone, (info, patience))
        timer.daemon = True
        timer.start()
        # Otherwise JAX aborts this process when another one dies, without naming that process.
        jax.config.update("jax_enable_recoverability", True)
        try:
            jax.distributed.initialize(
                **info.arguments,
                initialization_timeout=_FOREVER,  # After the timeout, JAX would abort.
                heartbeat_timeout_seconds=_SILENCE,
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"JAX cannot find the other processes of this run ({info.found_in}): {error} "
                "Pass --coordinator-address HOST:PORT, --process-count and --process-index."
            ) from None
        finally:
            timer.cancel()
        self.index, self.count = global_state.process_id, global_state.num_processes
        self._client: Any = global_state.client
        self._host = f"host {socket.gethostname()}, process id {os.getpid()}"
        self._names = [f"Process {index}" for index in range(self.count)]
        self._before_end: Callable[[str], None] | None = None
        self._num_compared = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rendezvous", daemon=True)
        self._thread.start()
        if self.index == 0:
            self._listener = socket.create_server(("", 0), backlog=self.count)
            self._set("mtf/port", self._listener.getsockname()[1])
        else:
            host = str(global_state.coordinator_address).rpartition(":")[0].strip("[]")
            threading.Thread(target=self._watch_first, args=(host,), daemon=True).start()
        global _current
        _current = self

    def compare(self, facts: Facts) -> None:
        """Raises a UserError in all processes unless the facts of all processes are equal."""
        self._num_compared += 1
        name = f"mtf/facts/{self._num_compared}"
        self._set(f"{name}/{self.index}", {"host": self._host, "facts": facts})
        if self.index == 0:
            everyone = [self._get(f"{name}/{i}") for i in range(self.count)]
            names = [f"Process {i} ({each['host']})" for i, each in enumerate(everyone)]
            difference = _difference(names, [each["facts"] for each in everyone])
            self._set(f"{name}/compared", [names, difference])
        self._names, difference = self._get(f"{name}/compared")
        if difference:
            raise UserError(difference)

    def broadcast(
        self, name: str, value: Any = None, meanwhile: Callable[[], None] = lambda: None
    ) -> Any:
        """Returns the JSON-serializable value that process 0 passes for a name.

        Calls `meanwhile` twice a second until the value arrives.
        """
        if self.index == 0:
            self._set(f"mtf/{name}", value)
        return self._get(f"mtf/{name}", meanwhile)

    def run(self, work: Callable[[], object], status_of: Callable[[_Work], int]) -> None:
        """Runs `work`; if it fails, all processes end.

        Args:
          work: the function that this process runs.
          status_of: a function that calls its argument, prints the error if one is raised, and
            returns the exit status.
        """

        def watched_work() -> int:
            try:
                work()
            except BaseException as error:
                if any(run_end.is_of_jax(run_end.failure(each)) for each in with_causes(error)):
                    time.sleep(1.5 * _SILENCE)  # `_watch` ends this process if another one is dead.
                self._ended.set()
                raise
            self._leave()
            return 0

        try:
            status = status_of(watched_work)
        except BaseException:
            traceback.print_exc()
            status = 1
        if status and self.index == 0:
            # Process 0 hosts the service, so the other processes end when it does.
            time.sleep(_SECONDS_TO_FAIL)
        if status:
            signals.end_now(status)  # At a normal exit, JAX would wait for unfinished computations.

    def _leave(self) -> None:
        """Disconnects once all processes have finished; process 0 disconnects last."""
        import jax

        with contextlib.suppress(self._error):
            self._client.wait_at_barrier("mtf/leave", 1000 * _FOREVER)
            self._ended.set()
            self._thread.join()
            while self.index == 0 and len(self._live()) > 1:
                time.sleep(0.1)
        jax.distributed.shutdown()

    def _live(self) -> set[int]:
        """Waits until each process has called this or died; returns the indices of live ones."""
        return set(self._client.get_live_nodes(list(range(self.count))))

    def _watch(self) -> None:
        """Ends this process when another one has died."""
        while not self._ended.wait(_PERIOD):
            try:
                dead = set(range(self.count)) - self._live()
            except self._error:  # Process 0, which hosts the service, has ended.
                dead = {0}
            if dead and not self._ended.wait(_SECONDS_TO_FAIL):
                self._end(min(dead))

    def _watch_first(self, host: str) -> None:
        """Ends this process when process 0 has died; JAX would abort without naming process 0.

        The kernel closes the connection to process 0, which never accepts it, when process 0 dies.
        """
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, self._get("mtf/port"))) as connection,
        ):
            with contextlib.suppress(ConnectionError):
                connection.recv(1)
            if not self._ended.is_set():
                self._end(0)

    def _end(self, dead: int) -> None:
        """Ends this process because another one has died."""
        failure = f"{self._names[dead]} died."
        said = f"error: {failure} See its output for the reason. This process ends as well."
        print(said, file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):
            (self._before_end or str)(failure)
        signals.end_now(1)

    def _set(self, name: str, value: Any) -> None:
        self._client.key_value_set(name, json.dumps(value))

    def _get(self, name: str, meanwhile: Callable[[], None] = lambda: None) -> Any:
        while True:
            try:
                return json.loads(self._client.blocking_key_value_get(name, 500))
            except self._error as error:
                if _IS_LATE not in str(error):
                    raise
            meanwhile()


# The rendezvous of this process, if it is one of several.
_current: Rendezvous | None = None


def current() -> Rendezvous | None:
    """Returns the rendezvous of this process, or None if it is the only process of its run."""
    return _current


def before_end(call: Callable[[str], None]) -> None:
    """Sets a function to call, with a message, before this process ends because another died."""
    if _current is not None:
        _current._before_end = call


def _end_alone(info: ProcessInfo, patience: float) -> None:
    """Ends this process because not all processes of its run have joined."""
    where = ", ".join([info.found_in, *map(str, list(info.arguments.values())[:1])])
    print(
        f"error: Waited {patience:g} s, but not all processes of this run joined ({where}). Start "
        "all of them with the same address and with different indices, and check their logs.",
        file=sys.stderr,
    )
    signals.end_now(2)


def _difference(names: Sequence[str], everyone: Sequence[Facts]) -> str:
    """Returns a message about the first process whose facts differ from process 0's, or ""."""
    for index, facts in enumerate(everyone):
        for kind, first in everyone[0].items():
            lines = [f"process 0: {line}" for line in first if line not in facts[kind]][:5]
            lines += [f"process {index}: {line}" for line in facts[kind] if line not in first][:5]
            if first != facts[kind]:
                changes = "\n  ".join(lines)
                return (
                    f"{names[index]} and {names[0]} differ in {kind}:\n  {changes}\nStart all "
                    "processes with the same command, code and packages."
                )
    return ""
