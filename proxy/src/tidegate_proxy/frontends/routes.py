"""Routes from models to shards, derived from the shards' announcements, equal in every frontend."""

from collections.abc import Iterable, Iterator

from tidegate_proxy.frontends.frames import ShardModels


class ShardRoutes:
    """Models of several shards, by shard number. Pure state without I/O.

    A model is asked of the first shard that has it. One that is to part with it is asked until another has it, so a
    model that moves is somewhere at every instant, whichever of the two shards learns of its new plan first.
    """

    def __init__(self, shards: int) -> None:
        self._said: list[ShardModels | None] = [None] * shards
        """Last announcement of each shard; None: it has never connected."""
        self._linked = [False] * shards
        self._shard_of: dict[str, int] = {}
        self._left: list[set[str]] = [set() for _ in range(shards)]
        """Models of which each shard was told, since it connected, that no requests will follow."""

    def shard_of(self, model: str) -> int | None:
        """The shard that is asked, which may be lost; None: none has such a model."""
        return self._shard_of.get(model)

    @property
    def knows_all(self) -> bool:
        """Whether every shard has said what it has, at some time."""
        return None not in self._said

    def said(self, shard: int, serves: ShardModels) -> None:
        """A shard says what it has."""
        before = self._said[shard]
        self._said[shard], self._linked[shard] = serves, True
        self._left[shard] &= serves.leaving
        self._look_at(_all_of(serves) | (_all_of(before) if before else frozenset()))

    def lost(self, shard: int) -> None:
        """A shard is lost. What no other has is its own still, and is not answered."""
        self._linked[shard] = False
        self._left[shard].clear()
        if said := self._said[shard]:
            self._look_at(_all_of(said))

    def news(self) -> Iterator[tuple[int, list[str]]]:
        """Return the models that each shard gives up and gets no more requests for; each is reported once."""
        for shard, said in enumerate(self._said):
            if said is None or not self._linked[shard]:
                continue
            left = {name for name in said.leaving - self._left[shard] if self._is_elsewhere(name, shard)}
            if left:
                self._left[shard] |= left
                yield shard, sorted(left)

    def _is_elsewhere(self, model: str, shard: int) -> bool:
        other = self._shard_of.get(model)
        return other is not None and other != shard and self._linked[other] and self._has(other, model)

    def _has(self, shard: int, model: str) -> bool:
        said = self._said[shard]
        return said is not None and model in said.models

    def _look_at(self, models: Iterable[str]) -> None:
        for model in models:
            shard = self._choice(model)
            if shard is None:
                self._shard_of.pop(model, None)
            else:
                self._shard_of[model] = shard

    def _choice(self, model: str) -> int | None:
        having = [shard for shard in range(len(self._said)) if self._has(shard, model)]
        if linked := [shard for shard in having if self._linked[shard]]:
            return linked[0]
        leaving = [
            shard
            for shard, said in enumerate(self._said)
            if said is not None and model in said.leaving and self._linked[shard]
        ]
        asked = self._shard_of.get(model)
        if asked in leaving:
            return asked
        if having:
            return having[0]
        return leaving[0] if leaving else None


def _all_of(serves: ShardModels) -> frozenset[str]:
    return serves.models | serves.leaving
