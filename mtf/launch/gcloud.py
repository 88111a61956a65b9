"""Creates, describes, deletes and reaches slices of Cloud TPU through gcloud."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtf.errors import RunError
from mtf.launch.tools import Tools, check

# Seconds between two looks at a queued resource or a slice that changes; how often the latter.
_SECONDS_BETWEEN = 30.0
_MAX_LOOKS = 20
_CHANGING = ("CREATING", "DELETING", "REIMAGING", "REPAIRING", "RESTARTING", "STARTING", "STOPPING")
# gcloud's words → what to do.
_ADVICE = (
    (
        r"quota",
        "The quota of the project is too small. Ask for more in the console of Google Cloud (IAM & "
        "Admin, Quotas), or choose another --type, --zone or --spot.",
    ),
    (
        r"no more capacity|insufficient (reserved )?capacity|resource_exhausted",
        "The zone has no free TPUs of this type. Wait for them with --queued, or choose another "
        "--zone.",
    ),
    (
        r"gcloud auth login|reauthenticat|no active account|active account selected",
        "Log in: gcloud auth login",
    ),
    (
        r"permission|forbidden|\b403\b",
        "The account that gcloud uses (gcloud auth list) needs the roles TPU Admin and Service "
        "Account User in the project.",
    ),
    (r"api .*(not been used|disabled)", "Enable it: gcloud services enable tpu.googleapis.com"),
)
_NOT_FOUND = re.compile(r"not[ _]found|was not found", re.IGNORECASE)


class Pod:
    """A TPU VM slice and its queued resource, which have the same name.

    Args:
      where: options of every command, such as --zone.
      user: user on the virtual machines; None for gcloud's choice.
      internal: connect to internal addresses.
    """

    def __init__(
        self, tools: Tools, name: str, where: Sequence[str], user: str | None, internal: bool
    ) -> None:
        self.tools, self.name = tools, name
        self._where = where
        self._login = f"{user}@{name}" if user else name
        self._connection = ["--internal-ip"] if internal else []

    def state(self) -> tuple[str, str]:
        """Returns the state, such as READY, and the type; ("", "") if there is no such slice."""
        found = self._describe("tpu-vm")
        return found.get("state", "UNKNOWN") if found else "", found.get("acceleratorType", "")

    def settled_state(self) -> tuple[str, str]:
        """Like `state`, but waits for some minutes while the slice is created or goes away."""
        for _ in range(_MAX_LOOKS):
            state, kind = self.state()
            if state not in _CHANGING:
                break
            print(f"{self.name} is {state}", flush=True)
            time.sleep(_SECONDS_BETWEEN)
        return state, kind

    def queue_state(self) -> str:
        """Returns the state of the queued resource, such as ACTIVE; "" if there is none."""
        found = self._describe("queued-resources")
        return str(found.get("state", {}).get("state", "UNKNOWN")) if found else ""

    def create(self, kind: str, runtime: str, spot: bool) -> None:
        """Creates the slice and waits until it is ready."""
        options = [f"--accelerator-type={kind}", f"--version={runtime}"]
        self._run("tpu-vm", "create", *options, *(["--spot"] if spot else []))

    def queue(self, kind: str, runtime: str, spot: bool) -> None:
        """Asks for the slice, without waiting for it."""
        options = [f"--accelerator-type={kind}", f"--runtime-version={runtime}"]
        more = ["--spot"] if spot else []
        self._run("queued-resources", "create", f"--node-id={self.name}", *options, *more)

    def wait_for_queue(self) -> None:
        """Waits until the queued resource is there; raises a RunError if it will not be."""
        before = None
        while (state := self.queue_state()) != "ACTIVE" and not self.tools.dry_run:
            if state != before:
                print(f"queued resource {self.name}: {state or 'gone'}", flush=True)
            if state in ("", "FAILED", "SUSPENDING", "SUSPENDED", "DELETING"):
                raise RunError(f"The queued resource {self.name} is {state or 'gone'}.")
            before = state
            time.sleep(_SECONDS_BETWEEN)

    def delete(self) -> None:
        """Deletes the slice."""
        self._run("tpu-vm", "delete")

    def delete_queued(self) -> None:
        """Deletes the queued resource with its slice."""
        self._run("queued-resources", "delete", "--force")

    def copy(self, file: Path, name: str) -> None:
        """Copies a file to the homes of all workers."""
        target = f"{self._login}:{name}"
        command = ["gcloud", "compute", "tpus", "tpu-vm", "scp", str(file), target]
        done = self.tools.run([*command, "--worker=all", *self._options()])
        check(done, "copying", _ADVICE)

    def run(self, command: str, what: str) -> str:
        """Runs a command of a remote shell on all workers; returns its output."""
        done = self.tools.run(self._ssh(command))
        check(done, what, _ADVICE)
        return done.output

    def ask(self, command: str) -> str:
        """Like `run`, but some workers may fail."""
        return self.tools.run(self._ssh(command)).output

    def start(self, command: str) -> subprocess.Popen[str]:
        """Starts a command of a remote shell on all workers, with all output in one pipe."""
        return self.tools.start(self._ssh(command))

    def _ssh(self, command: str) -> list[str]:
        return [
            *("gcloud", "compute", "tpus", "tpu-vm", "ssh", self._login, "--worker=all"),
            *(f"--command={command}", *self._options()),
            *("--ssh-flag=-oServerAliveInterval=15", "--ssh-flag=-oServerAliveCountMax=3"),
        ]

    def _options(self) -> list[str]:
        return [*self._where, *self._connection]

    def _command(self, kind: str, verb: str, *options: str) -> list[str]:
        return ["gcloud", "compute", "tpus", kind, verb, self.name, *options, *self._where]

    def _run(self, kind: str, verb: str, *options: str) -> None:
        done = self.tools.run(self._command(kind, verb, *options))
        if verb != "delete" or not _NOT_FOUND.search(done.error):
            check(done, f"gcloud {kind} {verb}", _ADVICE)

    def _describe(self, kind: str) -> dict[str, Any]:
        done = self.tools.run(self._command(kind, "describe", "--format=json"))
        if done.status and _NOT_FOUND.search(done.error):
            return {}
        check(done, f"gcloud {kind} describe", _ADVICE)
        if self.tools.dry_run:
            return {}
        try:
            found = json.loads(done.output)
        except ValueError as error:
            raise RunError(f"gcloud describes {self.name} as {done.output[:200]!r}.") from error
        return found if isinstance(found, dict) else {}
