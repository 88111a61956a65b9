"""Starts a run on a slice of Cloud TPU through gcloud, one process per worker."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from mtf import signals
from mtf.errors import RunError, UserError
from mtf.launch import shared
from mtf.launch.bundle import UNPACK, Job
from mtf.launch.gcloud import Pod
from mtf.launch.tools import Tools
from mtf.launch.tpu_types import Slice, find_slice, type_name

# Seconds between two looks at the state of the slice during the run.
_SECONDS_BETWEEN = 60.0
# Seconds that the other workers have to end by themselves, and then to save.
_SECONDS_TO_END, _SECONDS_TO_STOP = 60.0, 20
# States of a slice that does not come back.
_GONE = ("PREEMPTED", "TERMINATED")
_GOES_ON = "When the cause is removed, this goes on from the last checkpoint:"
_ENDED = re.compile(r"\[worker (\d+)\] mtf\.launch: process \d+ (?:ended with status (\d+)|was .*)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `mtf.launch tpu-pod`."""
    shared.add_action(parser)
    add = parser.add_argument
    add("--name", required=True, metavar="TPU", help="name of the TPU")
    add("--zone", required=True, metavar="ZONE", help="zone, such as us-central2-b")
    add("--project", metavar="ID", help="project (default: gcloud's)")
    add("--type", metavar="TYPE", help="v3-512, v4-32, v5litepod-16, v5p-128, v6e-64, …")
    creates = "create the TPU if it does not exist, and again if it was preempted or terminated"
    add("--create", action="store_true", help=creates)
    add("--queued", action="store_true", help="create it as a queued resource, and wait for it")
    add("--spot", action="store_true", help="create it as a spot TPU, which may be preempted")
    runtime = "software of the virtual machines (default: that for JAX on this type)"
    add("--runtime-version", metavar="NAME", help=runtime)
    restarts = "how often to create the TPU again and go on when it was preempted (default: 0)"
    add("--restarts", type=int, default=0, metavar="N", help=restarts)
    deletes = "delete the TPU when the run has ended in any way, or after stop"
    add("--delete", action="store_true", help=deletes)
    add("--user", metavar="NAME", help="user on the workers (default: gcloud's choice)")
    add("--internal-ip", action="store_true", help="connect to internal addresses")
    shared.add_job_options(parser)
    parser.set_defaults(no_copy=False)


def launch(options: argparse.Namespace) -> int:
    """Does what `options.action` says; returns the exit status."""
    name = shared.check_name(options.name, "--name")
    wanted = None if options.type is None else find_slice(options.type)
    if options.create and wanted is None:
        raise UserError("--create needs --type, such as --type v4-32.")
    if options.restarts < 0:
        raise UserError(f"--restarts is {options.restarts}; expected at least 0.")
    for flag in ("queued", "spot", "restarts"):
        if getattr(options, flag) and not options.create and options.action == "start":
            raise UserError(f"--{flag} is for --create only.")
    tools = Tools(options.dry_run)
    tools.need("gcloud", "Install it: https://cloud.google.com/sdk/docs/install.")
    where = [f"--zone={options.zone}", "--quiet"]
    where[1:1] = [] if options.project is None else [f"--project={options.project}"]
    pod = Pod(tools, name, where, options.user, options.internal_ip)
    run = _Run(pod, options)
    if options.action == "start":
        return run.start(wanted)
    if options.action == "status":
        state, kind = pod.state()
        if not options.dry_run:
            print(f"{name} {kind}: {state or 'does not exist'}")
        if state != "READY" and not options.dry_run:
            return 1
    if options.action == "logs" and not options.dry_run:
        return run.follow()
    command = {"status": "status", "logs": "follow", "stop": "stop 300"}[options.action]
    print(pod.run(run.job(*command.split()), options.action), end="")
    if options.action == "stop" and options.delete:
        run.delete()
    return 0


class _Run:
    """The processes of a run on the workers of a slice."""

    def __init__(self, pod: Pod, options: argparse.Namespace) -> None:
        self._pod, self._options = pod, options
        self._folder = f"mtf-launch/{pod.name}"
        self._ends: dict[int, int | None] = {}
        self._failed_at: float | None = None
        self._is_gone = False
        self._more: list[str] = []

    def job(self, *arguments: str) -> str:
        """Returns the remote command that runs job.sh."""
        return shlex.join(["sh", f"{self._folder}/job.sh", *arguments])

    def start(self, wanted: Slice | None) -> int:
        """Starts the run, and follows it to its end unless the options say otherwise."""
        pod, options = self._pod, self._options
        self._check_run_dir(0 if wanted is None else wanted.hosts)
        job = shared.make_job(options, pod.name, None, "tpu")
        if options.dry_run:
            print(job.shown())
        for left in range(options.restarts, -1, -1):
            num_workers = self._bring_up(job, wanted)
            if options.detach:
                return 0
            problem = None if options.dry_run else self._watch(num_workers)
            if not self._is_gone or left == 0:
                break
            print(f"mtf.launch: {problem} Restarts left: {left}", file=sys.stderr, flush=True)
        if options.delete:
            self.delete()
        if problem is not None:
            raise RunError(f"{problem} {_GOES_ON}\n  {self._resume()}")
        return 0

    def delete(self) -> None:
        """Deletes the slice, with its queued resource if there is one."""
        pod = self._pod
        if self._options.queued and (pod.tools.dry_run or pod.queue_state()):
            pod.delete_queued()
        else:
            pod.delete()

    def _bring_up(self, job: Job, wanted: Slice | None) -> int:
        """Creates the slice if necessary, and starts the processes; returns their number."""
        pod, options = self._pod, self._options
        self._ends, self._failed_at, self._is_gone = {}, None, False
        try:
            num_workers = self._make_ready(wanted)
            self._check_run_dir(num_workers)
            signals.hint("")
            self._prepare(job)
            pod.run(self.job("start"), "starting the processes")
        except RunError as error:
            raise RunError(f"{error}\nTo go on:\n  {self._resume()}") from error
        if options.dry_run:
            pod.run(self.job("follow"), "")
            return num_workers
        print(f"Started {num_workers} workers of {pod.name}.")
        shared.show_commands(options)
        signals.hint(f"the run goes on; to see its output: {shared.again(options, 'logs')}")
        return num_workers

    def _check_run_dir(self, num_workers: int) -> None:
        options = self._options
        if num_workers > 1 or options.delete or options.spot or options.restarts:
            why = "It must outlive the TPU, and all workers need it."
            shared.check_run_dir(options.command, why)
        elif num_workers and not any("://" in text for text in options.command):
            print("note: the run directory is on the TPU VM. It is lost if the TPU is deleted.")

    def _resume(self) -> str:
        """Returns the command that continues the run."""
        again = argparse.Namespace(**vars(self._options))
        again.given = [*again.given[:1], *self._more, *again.given[1:]]
        return shared.again(again, "start")

    def _create_again(self, kind: str) -> None:
        """The command that continues the run must create the slice."""
        options = self._options
        self._more = [] if options.create else ["--create"]
        self._more += [] if options.type else ["--type", kind or "TYPE"]

    def _make_ready(self, wanted: Slice | None) -> int:
        """Creates the slice if necessary and asked for; returns the number of workers."""
        pod, options = self._pod, self._options
        state, kind = pod.settled_state()
        if state in _GONE and not options.create:
            self._create_again(kind)
            raise RunError(
                f"{pod.name} was {state.lower()}. With --create, it is deleted and created again, "
                "and the run goes on from its last checkpoint."
            )
        if not state and not options.create and not options.dry_run:
            raise UserError(
                f"There is no TPU {pod.name} in {options.zone}. Pass --create --type TYPE to "
                "create it."
            )
        if options.create and wanted is not None and (not state or state in _GONE):
            self._create(wanted, exists=bool(state))
            state, kind = ("READY", type_name(options.type))
        if options.dry_run:
            return 0 if wanted is None else wanted.hosts
        if state != "READY":
            advice = f"gcloud compute tpus tpu-vm start {pod.name} --zone={options.zone}"
            advice = f"Start it: {advice}" if state == "STOPPED" else "Wait, or delete it."
            raise RunError(f"{pod.name} is {state}, not READY. {advice}")
        if wanted is not None and kind != type_name(options.type):
            raise UserError(f"{pod.name} is a {kind}, not a {options.type}. Leave out --type.")
        return find_slice(kind).hosts

    def _create(self, wanted: Slice, exists: bool) -> None:
        pod, options = self._pod, self._options
        runtime = options.runtime_version or wanted.generation.runtime
        kind = type_name(options.type)
        queue_state = pod.queue_state() if options.queued else ""
        if exists or queue_state in ("SUSPENDED", "FAILED"):
            (pod.delete_queued if queue_state else pod.delete)()
            queue_state = ""
        if not options.queued:
            pod.create(kind, runtime, options.spot)
            return
        if not queue_state:
            pod.queue(kind, runtime, options.spot)
        signals.hint(f"{pod.name} stays in the queue; to wait for it again: {self._resume()}")
        pod.wait_for_queue()

    def _prepare(self, job: Job) -> None:
        """Copies the code and the command to all workers, and installs the packages."""
        pod, bundle = self._pod, f"mtf-launch-{self._pod.name}.tar.gz"
        with tempfile.TemporaryDirectory(prefix="mtf-") as folder, signals.removed_on_stop(folder):
            file = Path(bundle if pod.tools.dry_run else f"{folder}/{bundle}")
            if not pod.tools.dry_run:
                print(job.code.summary if job.code else "", flush=True)
                job.write(file)
            pod.copy(file, bundle)
        unpack = shlex.join(["sh", "-c", UNPACK, "mtf", self._folder])
        pod.run(f"{unpack} <{shlex.quote(bundle)}", "unpacking the code")
        pod.run(self.job("install"), "installing the packages")

    def follow(self) -> int:
        """Shows the output of all workers until they have ended; returns gcloud's status."""
        process = self._pod.start(self.job("follow"))
        self._read(process)
        return int(process.wait() != 0)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for text in process.stdout:
            print(text, end="", flush=True)
            self._see(text)

    def _see(self, text: str) -> None:
        """Notes how workers ended, from what job.sh prints."""
        for found in _ENDED.finditer(text):
            worker, status = int(found[1]), int(found[2]) if found[2] else None
            self._ends[worker] = status
            if status != 0 and self._failed_at is None:
                self._failed_at = time.monotonic()
                how = "was killed" if status is None else f"ended with status {status}"
                print(f"mtf.launch: worker {worker} {how}", file=sys.stderr, flush=True)

    def _watch(self, num_workers: int) -> str | None:
        """Shows the output until all workers have ended; returns what went wrong, or None."""
        process = self._pod.start(self.job("follow"))
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        reader.start()
        looked = time.monotonic()
        while reader.is_alive():
            reader.join(0.1)
            now = time.monotonic()
            if now > looked + _SECONDS_BETWEEN:
                looked = now
                with contextlib.suppress(RunError):  # gcloud may work again a minute later.
                    if self._pod.state()[0] in (*_GONE, ""):
                        break
            if self._failed_at is not None and now > self._failed_at + _SECONDS_TO_END:
                break
        if reader.is_alive():
            process.terminate()
        return self._problem(num_workers)

    def _problem(self, num_workers: int) -> str | None:
        """Returns what went wrong, or None; stops the workers that are left.

        Raises:
          RunError: gcloud does not say what became of the slice.
        """
        pod, everyone = self._pod, range(num_workers)
        if all(self._ends.get(i, 1) == 0 for i in everyone):
            return None
        try:
            state, kind = pod.state()
        except RunError as error:
            again = shared.again(self._options, "logs")
            raise RunError(f"{error}\nThe run may go on. To see it:\n  {again}") from error
        if state != "READY":
            self._is_gone = True
            self._create_again(kind)
            return f"{pod.name} was preempted or deleted (state: {state or 'not found'})."
        if any(i not in self._ends for i in everyone):
            # Lines of several workers may have become one.
            self._see(pod.ask(self.job("status")))
        if all(self._ends.get(i, 1) == 0 for i in everyone):
            return None
        what = "A worker failed; see its output above."
        missing = [str(i) for i in everyone if i not in self._ends]
        if missing:
            what = f"Worker {', '.join(missing)} of {pod.name} does not answer."
            self._stop()
        return f"{what} The other workers have ended."

    def _stop(self) -> None:
        try:
            self._pod.run(self.job("stop", str(_SECONDS_TO_STOP)), "stopping the workers")
        except RunError as error:
            print(f"mtf.launch: {error}", file=sys.stderr)
