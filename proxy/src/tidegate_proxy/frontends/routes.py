"""Routes from models to shards, derived from the shards' announcements, equal in every frontend."""

from collections.abc import Iterable, Iterator

from tidegate_proxy.frontends.frames import ShardModels


class ShardRoutes:
    """Routing table over several shards, by number. It does no I/O.

    A model is routed to the first shard that has it. A shard that is to release a model is used until another has it,
    so a moving model is always available, whichever of the two shards learns of the new assignment first.
    """

    def __init__(self, shards: int) -> None:
        self._announced: list[ShardModels | None] = [None] * shards
        """Last announcement of each shard; None: it has never connected."""
        self._linked = [False] * shards
        self._shard_of: dict[str, int] = {}
        self._left: list[set[str]] = [set() for _ in range(shards)]
        """Models for which each shard was promised, since it connected, that no requests will follow."""

    def shard_of(self, model: str) -> int | None:
        """Return the shard that serves a model, which may be lost; None if no shard has it."""
        return self._shard_of.get(model)

    @property
    def knows_all(self) -> bool:
        """Whether every shard has reported its models at some time."""
        return None not in self._announced

    def said(self, shard: int, serves: ShardModels) -> None:
        """Apply a report of a shard."""
        before = self._announced[shard]
        self._announced[shard], self._linked[shard] = serves, True
        self._left[shard] &= serves.leaving
        self._look_at(_all_of(serves) | (_all_of(before) if before else frozenset()))

    def lost(self, shard: int) -> None:
        """Handle the loss of a shard. Models that no other has remain assigned to it, and are unavailable."""
        self._linked[shard] = False
        self._left[shard].clear()
        if announced := self._announced[shard]:
            self._look_at(_all_of(announced))

    def news(self) -> Iterator[tuple[int, list[str]]]:
        """Return the models that each shard gives up and gets no more requests for; each is reported once."""
        for shard, announced in enumerate(self._announced):
            if announced is None or not self._linked[shard]:
                continue
            left = {name for name in announced.leaving - self._left[shard] if self._is_elsewhere(name, shard)}
            if left:
                self._left[shard] |= left
                yield shard, sorted(left)

    def _is_elsewhere(self, model: str, shard: int) -> bool:
        other = self._shard_of.get(model)
        return other is not None and other != shard and self._linked[other] and self._has(other, model)

    def _has(self, shard: int, model: str) -> bool:
        announced = self._announced[shard]
        return announced is not None and model in announced.models

    def _look_at(self, models: Iterable[str]) -> None:
        for model in models:
            shard = self._choice(model)
            if shard is None:
                self._shard_of.pop(model, None)
            else:
                self._shard_of[model] = shard

    def _choice(self, model: str) -> int | None:
        having = [shard for shard in range(len(self._announced)) if self._has(shard, model)]
        if linked := [shard for shard in having if self._linked[shard]]:
            return linked[0]
        leaving = [
            shard
            for shard, announced in enumerate(self._announced)
            if announced is not None and model in announced.leaving and self._linked[shard]
        ]
        asked = self._shard_of.get(model)
        if asked in leaving:
            return asked
        if having:
            return having[0]
        return leaving[0] if leaving else None


def _all_of(serves: ShardModels) -> frozenset[str]:
    return serves.models | serves.leaving
