"""Starts a run on TPUs in Google Kubernetes Engine: writes a JobSet and applies it with kubectl."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path
from typing import Any

from mtf.errors import RunError, UserError
from mtf.launch import shared
from mtf.launch.jobset import as_yaml, manifest
from mtf.launch.tools import Tools, check
from mtf.launch.tpu_types import Slice, find_slice
from mtf.writing import write_atomically

_MAX_PODS = 2048
# kubectl's words → what to do.
_ADVICE = (
    (
        r"no matches for kind|the server doesn't have a resource type",
        "JobSet is not installed in the cluster: https://jobset.sigs.k8s.io/docs/installation",
    ),
    (
        r"current-context|refused|unable to connect|no configuration|must be logged in",
        "Connect kubectl to the cluster: gcloud container clusters get-credentials CLUSTER "
        "--location LOCATION",
    ),
    (r"quota", "The quota of the namespace is too small. Free some of it, or ask for more."),
    (r"forbidden", "Your account needs the role Kubernetes Engine Developer in the project."),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `mtf.launch gke`."""
    shared.add_action(parser)
    add = parser.add_argument
    add("--name", metavar="NAME", help="name of the JobSet (default: the recipe's)")
    add("--type", metavar="TYPE", help="v4-32, v5litepod-16, v5p-128, v6e-64, …")
    image = "container image with mtf, its packages for TPUs and your recipes"
    add("--image", metavar="IMAGE", help=image)
    add("--python", default="python", metavar="PATH", help="Python in the image")
    add("--namespace", metavar="NAME", help="namespace (default: kubectl's)")
    add("--context", metavar="NAME", help="context of kubectl (default: the current one)")
    restarts = "how often all pods are started again after one failed (default: 3)"
    add("--max-restarts", type=int, default=3, metavar="N", help=restarts)
    add("--service-account", metavar="NAME", help="Kubernetes' service account of the pods")
    add("--queue", metavar="NAME", help="Kueue's local queue")
    add("--spot", action="store_true", help="use spot nodes")
    variable = "an environment variable of the processes; may be repeated"
    add("--env", action="append", default=[], metavar="NAME=VALUE", help=variable)
    folder = "directory of the manifest (default: gke)"
    add("--folder", default="gke", metavar="DIR", help=folder)


def launch(options: argparse.Namespace) -> int:
    """Does what `options.action` says; returns the exit status."""
    cluster = _Cluster(options)
    if options.action == "start":
        return cluster.start()
    if options.action == "status":
        return cluster.status()
    if options.action == "logs":
        return cluster.logs()
    cluster.delete()
    if not options.dry_run:
        print(f"Stopped {cluster.name}. Its processes saved a checkpoint if they were training.")
    return 0


class _Cluster:
    """The JobSet of a run, through kubectl."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        if options.name is None and not options.command:
            raise UserError(f"--name is missing: which run is meant by {options.action}?")
        name = options.name or shared.name_of(options.command[0]).lower().replace("_", "-")
        # Pods are called NAME-workers-0-I-xxxxx, with at most 63 letters.
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
            raise UserError(
                f"--name {name}: expected at most 40 lower-case letters, digits and -, the first a "
                "letter."
            )
        if options.name is None:
            options.given += ["--name", name]
        self.name = name
        self._tools = Tools(options.dry_run)
        self._tools.need("kubectl", "Install it: gcloud components install kubectl.")

    def start(self) -> int:
        """Writes the manifest and applies it."""
        options, file = self._options, Path(self._options.folder) / f"{self.name}.yaml"
        text = as_yaml(self._manifest())
        if options.dry_run:
            print(f"# {file}\n{text}", end="")
        try:
            self._remove_ended()
            if not options.dry_run:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, text)
            check(
                self._tools.run(self._kubectl("apply", f"--filename={file}")),
                "kubectl apply",
                _ADVICE,
            )
        except RunError as error:
            again = shared.again(options, "start")
            raise RunError(f"{error}\nTo go on:\n  {again}") from error
        if not options.dry_run:
            print(f"Applied {file}.")
            shared.show_commands(options)
        return 0

    def _manifest(self) -> dict[str, Any]:
        options = self._options
        for option in ("type", "image"):
            if getattr(options, option) is None:
                raise UserError(f"--{option} is missing.")
        if options.max_restarts < 0:
            raise UserError(f"--max-restarts is {options.max_restarts}; expected at least 0.")
        tpu = self._slice()
        shared.check_run_dir(options.command, "The disks of pods are lost when they end.")
        return manifest(
            self.name,
            tpu,
            options.image,
            [options.python, "-m", "mtf.run", *options.command],
            variables=shared.find_variables(options.env),
            max_restarts=options.max_restarts,
            service_account=options.service_account,
            queue=options.queue,
            spot=options.spot,
        )

    def _slice(self) -> Slice:
        kind = self._options.type
        tpu = find_slice(kind)
        if not tpu.topology:
            raise UserError(f"--type {kind}: GKE has no TPUs of this type and size.")
        return tpu

    def _remove_ended(self) -> None:
        """Deletes the JobSet of an earlier start, so that the run can go on."""
        found = self._find()
        if not found:
            return
        if not _outcome(found):
            raise RunError(f"The JobSet {self.name} runs already. Stop it, or pass another --name.")
        self.delete()

    def status(self) -> int:
        """Shows the state of the JobSet and its pods; returns 1 if it failed."""
        found = self._find()
        if not found and not self._options.dry_run:
            print(f"There is no JobSet {self.name}.")
            return 1
        outcome = _outcome(found)
        restarts = found.get("status", {}).get("restarts", 0)
        if not self._options.dry_run:
            print(f"{self.name}: {outcome or 'running or waiting'}, {restarts} restarts")
        pods = self._tools.run(self._kubectl("get", "pods", self._selector(), "--output=wide"))
        check(pods, "kubectl get pods", _ADVICE)
        print(pods.output, end="")
        if outcome == "Failed":
            print("The command that started it goes on from the last checkpoint.")
        return int(outcome == "Failed")

    def logs(self) -> int:
        """Shows the output of all pods, with their names."""
        command = self._kubectl(
            *("logs", self._selector(), "--follow", "--prefix", "--tail=-1", "--ignore-errors"),
            f"--max-log-requests={_MAX_PODS}",
        )
        if self._options.dry_run:
            print(shlex.join(command))
            return 0
        process = self._tools.start(command)
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
        return int(process.wait() != 0)

    def delete(self) -> None:
        """Deletes the JobSet; its processes get SIGTERM, and save."""
        command = self._kubectl("delete", "jobset", self.name, "--cascade=foreground")
        check(self._tools.run(command), "kubectl delete", _ADVICE)

    def _find(self) -> dict[str, Any]:
        command = self._kubectl("get", "jobset", self.name, "--ignore-not-found", "--output=json")
        done = self._tools.run(command)
        check(done, "kubectl get", _ADVICE)
        found = json.loads(done.output) if done.output.strip() else {}
        return found if isinstance(found, dict) else {}

    def _selector(self) -> str:
        return f"--selector=jobset.sigs.k8s.io/jobset-name={self.name}"

    def _kubectl(self, *arguments: str) -> list[str]:
        options = self._options
        where = [] if options.context is None else [f"--context={options.context}"]
        where += [] if options.namespace is None else [f"--namespace={options.namespace}"]
        return ["kubectl", *arguments, *where]


def _outcome(found: dict[str, Any]) -> str:
    """Returns Completed or Failed, or "" if a JobSet has not ended."""
    status = found.get("status", {})
    ended = [
        each["type"]
        for each in status.get("conditions", ())
        if each.get("status") == "True" and each.get("type") in ("Completed", "Failed")
    ]
    return str(status.get("terminalState") or (ended or [""])[0])
