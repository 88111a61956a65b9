"""The section `train` of gpu.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_data import network
from gpu_run import Run
from gpu_workers import Failed, Worker

from mtf.training.flops import peak_flops, train_step_flops

# From this batch on, an accelerator is well used; below, mtf recomputes to have larger batches.
_ENOUGH_ROWS = 8
_NOT_ONE_ROW = "not even a batch of one row fits"


def train(run: Run) -> None:
    """Measures training steps: first in turn with the other side, then further variants of mtf.

    All variants of the other side are measured once, then only the fastest of them.
    """
    shapes = [Shape(run, size, each) for size in run.args.sizes for each in run.args.lengths]
    peers = [] if run.args.no_peer else list(run.args.peers)
    for shape in shapes:
        with run.worker("mtf") as ours, run.worker("torch") as theirs:
            try:
                peers = shape.compare(ours, theirs, peers)
            except Failed as error:
                shape.failed(error)
    for shape in shapes:
        with run.worker("mtf") as ours:
            for variant in run.args.variants[1:]:
                try:
                    shape.alone("mtf", ours, *shape.fitting(ours, variant))
                except Failed as error:
                    shape.failed(error, variant=variant)


class Shape:
    """A size of the network and the lengths of inputs and targets."""

    def __init__(self, run: Run, size: str, lengths: Sequence[int]):
        self._run = run
        self._shape = {"size": size, "lengths": lengths}
        self._found: dict[str, int] = {}
        # Variant and batch of the step that mtf has built, and its answer.
        self._ours: tuple[tuple[str, int], dict[str, Any]] | None = None

    def failed(self, error: Failed, **about: Any) -> None:
        """Records that something could not be measured."""
        self._run.record(section="train", **self._shape, **about, failed=str(error))

    def largest(self, worker: Worker, variant: str) -> int:
        """Returns the batch of a variant: the given one, or the largest that fits."""
        if self._run.args.batch_size:
            return int(self._run.args.batch_size)
        alike = variant.replace("unrolled", "scanned")
        if alike not in self._found:
            request = {**self._shape, "variant": variant, "most": self._run.args.most}
            self._found[alike] = worker.ask("largest", limit=self._run.limit, **request)["batch"]
        if not self._found[alike]:
            raise Failed(_NOT_ONE_ROW, memory=True)
        return self._found[alike]

    def compare(self, ours: Worker, theirs: Worker, peers: Sequence[str]) -> list[str]:
        """Measures both sides at the same batch, and each alone if its own largest is larger.

        Returns the fastest of the other side's variants with float32 weights, like mtf's.
        """
        wanted = self._run.args.variants[0]
        variant, own = self.fitting(ours, wanted)
        their_own = 0
        if peers:
            if self._run.args.one_by_one:
                ours.end()
            try:
                their_own = self.largest(theirs, peers[0])
            except Failed as error:
                self.failed(error, peer=peers[0])
        batch = min(own, their_own)
        seconds: dict[str, float] = {}
        for peer in peers if batch else []:
            paired, _ = self.fitting(ours, wanted, batch)
            try:
                batch, seconds[peer] = self._pair(ours, theirs, paired, peer, batch)
            except Failed as error:
                self.failed(error, variant=paired, peer=peer, batch=batch)
        if own > batch or not seconds:
            theirs.end()
            self.alone("mtf", ours, variant, own)
        alike = [peer for peer in seconds if "/float32/" in peer] or list(seconds)
        if not alike:
            return list(peers)
        fastest = min(alike, key=seconds.__getitem__)
        if their_own > batch:
            ours.end()
            self.alone("torch", theirs, fastest, their_own)
        return [fastest]

    def fitting(self, worker: Worker, wanted: str, least: int = _ENOUGH_ROWS) -> tuple[str, int]:
        """Returns a variant of mtf and its batch, with recomputation if fewer rows fit else."""
        optimizer, layers, remat = wanted.split("/")
        policies = ("none", "minimal", "full")
        found: list[tuple[str, int]] = []
        for policy in policies[policies.index(remat) :]:
            variant = f"{optimizer}/{layers}/{policy}"
            try:
                found.append((variant, self.largest(worker, variant)))
            except Failed as error:
                if not error.memory:
                    raise
                continue
            if self._run.args.batch_size or found[-1][1] >= min(least, self._run.args.most):
                break
        if not found:
            raise Failed(_NOT_ONE_ROW, memory=True)
        return max(found, key=lambda each: each[1])

    def _pair(
        self, ours: Worker, theirs: Worker, variant: str, peer: str, batch: int
    ) -> tuple[int, float]:
        """Measures both sides; returns the batch that fitted and the peer's seconds."""
        measure = self._one_by_one if self._run.args.one_by_one else self._in_turn
        while True:
            try:
                figures = measure(ours, theirs, variant, peer, batch)
                break
            except Failed as error:
                if batch == 1 or not error.memory:
                    raise
                batch //= 2
        self._record(batch, figures, variant=variant, peer=peer)
        return batch, figures["torch"]["seconds"]

    def _in_turn(
        self, ours: Worker, theirs: Worker, variant: str, peer: str, batch: int
    ) -> dict[str, Any]:
        """Both sides stay loaded and take turns."""
        # Both build at the same time, because they compile on the host.
        theirs.send("train", **self._shape, variant=peer, batch=batch)
        failures = []
        if self._ours is None or self._ours[0] != (variant, batch):
            self._ours = None
            try:
                self._ours = (variant, batch), self._build(ours, variant, batch)
            except Failed as error:
                failures.append(Failed(f"mtf: {error}", error.memory))
        try:
            built = theirs.receive(self._run.limit)
        except Failed as error:
            failures.append(Failed(f"PyTorch: {error}", error.memory))
        if failures or self._ours is None:
            raise next((each for each in failures if not each.memory), failures[0])
        return self._run.timed({"mtf": (ours, self._ours[1]), "torch": (theirs, built)})

    def _one_by_one(
        self, ours: Worker, theirs: Worker, variant: str, peer: str, batch: int
    ) -> dict[str, Any]:
        """Each side ends before the other starts, because it may use all memory."""
        figures: dict[str, Any] = {}
        ours.end()
        for side, worker, each in (("torch", theirs, peer), ("mtf", ours, variant)):
            figures |= self._run.timed({side: (worker, self._build(worker, each, batch))})
            worker.end()
        return figures

    def _build(self, worker: Worker, variant: str, batch: int) -> dict[str, Any]:
        request = {**self._shape, "variant": variant, "batch": batch}
        return worker.ask("train", limit=self._run.limit, **request)

    def alone(self, side: str, worker: Worker, variant: str, batch: int) -> None:
        """Measures one side at a batch, or at the next smaller one that fits."""
        while True:
            try:
                built = self._build(worker, variant, batch)
                break
            except Failed as error:
                if not error.memory or batch == 1:
                    raise
                batch //= 2
        name = {"mtf": "variant", "torch": "peer"}[side]
        self._record(batch, self._run.timed({side: (worker, built)}), **{name: variant})

    def _record(self, batch: int, figures: dict[str, Any], **about: Any) -> None:
        """Adds the speed of each side to its figures, and records them."""
        for of_side in figures.values():
            of_side |= self._speed(batch, of_side["seconds"])
        self._run.record(section="train", **self._shape, batch=batch, **about, **figures)

    def _speed(self, batch: int, seconds: float) -> dict[str, Any]:
        """Returns tokens/s (inputs and targets) and MFU, if the GPU's peak is known."""
        lengths = self._shape["lengths"]
        flops = train_step_flops(network(str(self._shape["size"])), batch, *lengths) / seconds
        peak = peak_flops(self._run.machine["gpu"] or "")
        return {
            "tokens_per_second": batch * sum(lengths) / seconds,
            "tflops": flops / 1e12,
            "mfu": flops / peak if peak else None,
        }
