"""Starts a run on a list of hosts through ssh, one process per host."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from mtf import signals
from mtf.cluster.places import ADDRESS, COUNT
from mtf.errors import RunError, UserError
from mtf.launch import shared
from mtf.launch.bundle import UNPACK, Job
from mtf.launch.tools import Done, Tools

T = TypeVar("T")

_PORT = 61_438
_MAX_CONNECTIONS = 64
# Exit status of ssh if the connection fails, and how often it is tried again.
_NO_CONNECTION = 255
_ATTEMPTS, _SECONDS_BETWEEN = 4, 5.0
# Seconds that the other processes have to end by themselves, and then to save.
_SECONDS_TO_END, _SECONDS_TO_STOP = 60.0, 20
_SSH = (
    *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
)
_ENDED = re.compile(r"\[[^\]]+\] mtf\.launch: process \d+ (?:ended with status (\d+)|was .*)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `mtf.launch hosts`."""
    shared.add_action(parser)
    add = parser.add_argument
    add("--hosts", metavar="A,B,…", help="hosts, as ssh knows them; the first has process 0")
    add("--hosts-file", metavar="FILE", help="a file with a host on each line, instead of --hosts")
    add("--user", metavar="NAME", help="user on the hosts")
    add("--name", metavar="NAME", help="name of the run (default: the recipe's)")
    folder = "directory on the hosts for the code and logs (default: mtf-launch, in the home)"
    add("--directory", default="mtf-launch", metavar="DIR", help=folder)
    add("--python", default="python3", metavar="PATH", help="Python on the hosts")
    install = "install the packages of this environment there, with the same versions"
    add("--install", action="store_true", help=install)
    copied = "run in the current directory, which all hosts have, instead of copying the code"
    add("--no-copy", action="store_true", help=copied)
    address = f"where process 0 listens (default: the first host, port {_PORT})"
    add("--coordinator-address", metavar="HOST:PORT", help=address)
    shared.add_job_options(parser)


def launch(options: argparse.Namespace) -> int:
    """Does what `options.action` says; returns the exit status."""
    hosts = _hosts(options)
    if options.name is None and not options.command:
        raise UserError(f"--name is missing: which run is meant by {options.action}?")
    name = shared.check_name(options.name or shared.name_of(options.command[0]), "--name")
    if options.name is None:
        options.given += ["--name", name]
    tools = Tools(options.dry_run)
    tools.need("ssh", "Install OpenSSH's client.")
    run = _Run(tools, hosts, options.user, f"{options.directory.removeprefix('~/')}/{name}")
    if options.action == "start":
        return _start(run, name, options)
    if options.action == "logs" and not options.dry_run:
        return run.follow(lambda host, status: None)
    command = {"status": "status", "logs": "follow 1", "stop": "stop 300"}[options.action]
    results = run.on_all(lambda i: run.job(i, *command.split(), hosts[i]))
    for host, done in zip(hosts, results, strict=True):
        failed = "does not answer" if done.status == _NO_CONNECTION else "failed"
        print(f"[{host}] {failed}: {done.message}\n" if done.status else done.output, end="")
    return int(any(done.status for done in results))


def _hosts(options: argparse.Namespace) -> list[str]:
    if (options.hosts is None) == (options.hosts_file is None):
        raise UserError("Pass either --hosts A,B,… or --hosts-file FILE.")
    if options.hosts is not None:
        hosts = [host.strip() for host in options.hosts.split(",")]
    else:
        try:
            lines = Path(options.hosts_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--hosts-file {options.hosts_file} cannot be read: {error}") from error
        hosts = [line.partition("#")[0].strip() for line in lines]
        hosts = [host for host in hosts if host]
    for host in hosts:
        if not re.fullmatch(r"([A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9][\w.:-]*", host, re.ASCII):
            raise UserError(f"{host!r} is not a host; expected a name or an address, such as gpu1.")
    if not hosts or len(set(hosts)) < len(hosts):
        raise UserError(f"The hosts are {', '.join(hosts) or 'missing'}; expected each host once.")
    return hosts


def _start(run: _Run, name: str, options: argparse.Namespace) -> int:
    hosts = run.hosts
    if len(hosts) > 1:
        why = f"The {len(hosts)} processes need a directory that all of them see."
        shared.check_run_dir(options.command, why)
    first = hosts[0].rpartition("@")[2]
    address = options.coordinator_address or f"{f'[{first}]' if ':' in first else first}:{_PORT}"
    python = None if options.install else options.python
    variables = {ADDRESS: address, COUNT: str(len(hosts))}
    job = shared.make_job(options, name, python, "given", **variables)
    if options.dry_run:
        print(job.shown())
    elif job.code is not None:
        print(job.code.summary)
    try:
        _prepare(run, job)
        _start_processes(run)
    except RunError as error:
        raise RunError(f"{error}\nTo go on:\n  {shared.again(options, 'start')}") from error
    if options.dry_run:
        run.on_all(lambda i: run.job(i, "follow", "1", hosts[i]))
        return 0
    print(f"Started {name} on {len(hosts)} hosts.")
    shared.show_commands(options)
    if options.detach:
        return 0
    logs = shared.again(options, "logs")
    signals.hint(f"the run goes on; to see its output: {logs}")
    return _watch(run, options)


def _prepare(run: _Run, job: Job) -> None:
    """Copies the code and the command to all hosts, and installs the packages."""
    hosts = run.hosts
    with tempfile.TemporaryDirectory(prefix="mtf-") as folder, signals.removed_on_stop(folder):
        bundle = Path("bundle.tar.gz" if run.tools.dry_run else f"{folder}/bundle.tar.gz")
        if not run.tools.dry_run:
            job.write(bundle)
        unpack = ["sh", "-c", UNPACK, "mtf"]
        done = run.on_all(lambda i: run.ssh(i, shlex.join([*unpack, run.folder(i)]), bundle))
    if any(each.status for each in done):
        raise RunError(_failures("could not be prepared", hosts, done) + "\nNothing was started.")
    if job.requirements is not None:
        done = run.on_all(lambda i: run.job(i, "install"))
    if any(each.status for each in done):
        raise RunError(
            _failures("could not install the packages", hosts, done) + "\nNothing was started."
        )


def _start_processes(run: _Run) -> None:
    """Starts all processes, or none."""
    started = run.on_all(lambda i: run.job(i, "start", str(i)))
    if any(done.status for done in started):
        good = [i for i, done in enumerate(started) if done.status == 0]
        run.on_all(lambda i: run.job(i, "stop", "5") if i in good else Done(0, "", ""))
        raise RunError(_failures("could not start the process", run.hosts, started))


def _failures(what: str, hosts: Sequence[str], results: Sequence[Done]) -> str:
    failed = [(host, done) for host, done in zip(hosts, results, strict=True) if done.status]
    return "\n".join(f"{host} {what}: {done.message}" for host, done in failed)


def _watch(run: _Run, options: argparse.Namespace) -> int:
    """Shows the output until all processes have ended; stops the others after a failure."""
    ends: dict[str, int | None] = {}
    failed = threading.Event()

    def ended(host: str, status: int | None) -> None:
        ends[host] = status
        if status != 0 and not failed.is_set():
            failed.set()
            how = "does not answer" if status is None else f"ended with status {status}"
            index = run.hosts.index(host)
            print(
                f"mtf.launch: {host} (process {index} of {len(run.hosts)}) {how}", file=sys.stderr
            )
            threading.Thread(target=stop_others, daemon=True).start()

    def stop_others() -> None:
        deadline = time.monotonic() + _SECONDS_TO_END
        while len(ends) < len(run.hosts) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [i for i, host in enumerate(run.hosts) if host not in ends]
        run.on_all(
            lambda i: run.job(i, "stop", str(_SECONDS_TO_STOP)) if i in left else Done(0, "", "")
        )

    run.follow(ended)
    lost = [host for host, status in ends.items() if status is None]
    resume = shared.again(options, "start")
    if len(lost) == len(run.hosts):
        raise RunError(
            "No host answers; the connection of this machine may be down. The run may go on. To "
            f"see it:\n  {shared.again(options, 'logs')}"
        )
    status = max((status or 0 for status in ends.values()), default=0)
    if lost:
        print(f"error: {', '.join(lost)} does not answer.", file=sys.stderr)
        status = 1
    if status:
        print(
            "The other processes have ended. When the cause is removed, this goes on from the last "
            f"checkpoint, also with other hosts:\n  {resume}",
            file=sys.stderr,
        )
    return status


class _Run:
    """The processes of a run on hosts, process i on host i.

    Args:
      folder: directory of the run on the hosts, in the home unless it starts with "/".
    """

    def __init__(self, tools: Tools, hosts: Sequence[str], user: str | None, folder: str) -> None:
        self.tools, self.hosts, self._folder = tools, hosts, folder
        self._user = ["-l", user] if user else []

    def folder(self, index: int) -> str:
        """The directory on a host; hosts may share their home, so each has its own."""
        return f"{self._folder}/{self.hosts[index].replace(':', '_')}"

    def ssh(self, index: int, command: str, stdin: Path | None = None) -> Done:
        """Runs a command of a remote shell on a host; its parts must be quoted."""
        return self.tools.run(self._command(index, command), stdin)

    def job(self, index: int, *arguments: str) -> Done:
        """Runs job.sh on a host."""
        return self.ssh(index, self._job(index, *arguments))

    def on_all(self, act: Callable[[int], T]) -> list[T]:
        """Calls a function with the number of each host, all at the same time."""
        if self.tools.dry_run:
            return [act(i) for i in range(len(self.hosts))]
        with ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
            return list(pool.map(act, range(len(self.hosts))))

    def follow(self, ended: Callable[[str, int | None], None]) -> int:
        """Shows the output of all processes until they have ended.

        Calls `ended` with each host and its exit status, or None if the host does not answer.
        Returns 1 if a process did not end with status 0.
        """
        threads = [
            threading.Thread(target=self._follow, args=(i, ended), daemon=True)
            for i in range(len(self.hosts))
        ]
        self._statuses: list[int | None] = [None] * len(threads)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return int(any(status != 0 for status in self._statuses))

    def _follow(self, index: int, ended: Callable[[str, int | None], None]) -> None:
        host, line, status = self.hosts[index], 1, _NO_CONNECTION
        for _ in range(_ATTEMPTS):
            command = self._job(index, "follow", str(line), host)
            process = self.tools.start(self._command(index, command))
            assert process.stdout is not None
            for text in process.stdout:
                if not text.startswith("["):  # a message of ssh
                    text = f"[{host}] ssh: {text}"
                elif found := _ENDED.match(text):
                    self._statuses[index] = int(found[1] or 1)
                else:
                    line += 1
                print(text, end="", flush=True)
            status = process.wait()
            if status != _NO_CONNECTION:
                break
            time.sleep(_SECONDS_BETWEEN)
        ended(host, self._statuses[index])

    def _job(self, index: int, *arguments: str) -> str:
        return shlex.join(["sh", f"{self.folder(index)}/job.sh", *arguments])

    def _command(self, index: int, command: str) -> list[str]:
        return [*_SSH, *self._user, self.hosts[index], command]
