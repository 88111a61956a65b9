"""Manifests of JobSets, which run a job on a slice of TPUs in Google Kubernetes Engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtf.launch.tpu_types import Slice
from mtf.run_end import STOPPED_FAILS

_PORTS = (61_438, 61_439)  # of process 0, and of JAX's coordinator
_SECONDS_TO_SAVE = 300
_LABELS = "metadata.labels['jobset.sigs.k8s.io/{}']"
# What mtf.run looks for (mtf/cluster/places.py): variable → label of the pod.
_FROM_LABELS = {"JOBSET_NAME": "jobset-name", "REPLICATED_JOB_NAME": "replicatedjob-name"}
# The exit status of a wrong command line or config, which a restart does not help.
_REFUSED = 2


def manifest(
    name: str,
    tpu: Slice,
    image: str,
    command: Sequence[str],
    *,
    variables: Mapping[str, str],
    max_restarts: int,
    service_account: str | None = None,
    queue: str | None = None,
    spot: bool = False,
) -> dict[str, Any]:
    """Returns a JobSet with one pod for each host of a slice.

    Args:
      queue: Kueue's local queue.
      spot: run on spot nodes.
    """
    fields = {
        env: {"valueFrom": {"fieldRef": {"fieldPath": _LABELS.format(label)}}}
        for env, label in _FROM_LABELS.items()
    }
    env = [{"name": key, **field} for key, field in fields.items()]
    # A pod that is evicted and ends with status 0 would count as succeeded.
    values = {"PROCESSES_IN_JOB": str(tpu.hosts), STOPPED_FAILS: "1", **variables}
    env += [{"name": key, "value": _literal(value)} for key, value in values.items()]
    container = {
        "name": "mtf",
        "image": image,
        "command": [_literal(text) for text in command],
        "env": env,
        "ports": [{"containerPort": port} for port in _PORTS],
        "resources": {"limits": {"google.com/tpu": tpu.chips_per_host}},
    }
    selector = {
        "cloud.google.com/gke-tpu-accelerator": tpu.gke,
        "cloud.google.com/gke-tpu-topology": tpu.topology,
        **({"cloud.google.com/gke-spot": "true"} if spot else {}),
    }
    pod = {
        "restartPolicy": "Never",
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": _SECONDS_TO_SAVE,
        **({"serviceAccountName": service_account} if service_account else {}),
        "nodeSelector": selector,
        "containers": [container],
    }
    refused = {"containerName": "mtf", "operator": "In", "values": [_REFUSED]}
    job = {
        "parallelism": tpu.hosts,
        "completions": tpu.hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": refused}]},
        "template": {"spec": pod},
    }
    rule = {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    exclusive = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            **({"labels": {"kueue.x-k8s.io/queue-name": queue}} if queue else {}),
            "annotations": {exclusive: "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {"maxRestarts": max_restarts, "rules": [rule]},
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _literal(text: str) -> str:
    """Returns a text in which Kubernetes replaces no $(VARIABLE)."""
    return text.replace("$(", "$$(")


def as_yaml(value: Mapping[str, Any]) -> str:
    """Returns a mapping as YAML."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _entry(f"{_scalar(key)}:", inner)
    elif isinstance(value, list) and value:
        for inner in value:
            first, *others = _lines(inner)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
    else:
        yield _scalar(value)


def _entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping | list) and value:
        yield key
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{key} {_scalar(value)}"


def _scalar(value: Any) -> str:
    """Returns a value as YAML; JSON is YAML, too."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./:-]*[\w]", value, re.ASCII)
    if plain and value.lower() not in ("true", "false", "null", "yes", "no", "on", "off"):
        return str(value)
    return json.dumps(value, ensure_ascii=False)
