"""Which home is asked for which model: made of what the homes say themselves, the same in every front."""

from collections.abc import Iterable, Iterator

from tidegate_proxy.frontends.frames import Serves


class Routes:
    """What is known of several homes, by their numbers. Pure: it is told, and answers.

    A model is asked of the first home that has it. One that is to part with it is asked until another has it, so a
    model that moves is somewhere at every instant, whichever of the two homes learns of its new plan first.
    """

    def __init__(self, homes: int) -> None:
        self._said: list[Serves | None] = [None] * homes
        """What each said last; None: it was never there."""
        self._linked = [False] * homes
        self._home_of: dict[str, int] = {}
        self._left: list[set[str]] = [set() for _ in range(homes)]
        """What each has been told, since it was linked, that it is asked for no more."""

    def home_of(self, model: str) -> int | None:
        """The home that is asked, which may be lost; None: none has such a model."""
        return self._home_of.get(model)

    @property
    def knows_all(self) -> bool:
        """Whether every home has said what it has, at some time."""
        return None not in self._said

    def said(self, home: int, serves: Serves) -> None:
        """A home says what it has."""
        before = self._said[home]
        self._said[home], self._linked[home] = serves, True
        self._left[home] &= serves.leaving
        self._look_at(_all_of(serves) | (_all_of(before) if before else frozenset()))

    def lost(self, home: int) -> None:
        """A home is lost. What no other has is its own still, and is not answered."""
        self._linked[home] = False
        self._left[home].clear()
        if said := self._said[home]:
            self._look_at(_all_of(said))

    def news(self) -> Iterator[tuple[int, list[str]]]:
        """What homes are to be told: the models that each parts with and is asked for no more. Each is told once."""
        for home, said in enumerate(self._said):
            if said is None or not self._linked[home]:
                continue
            left = {name for name in said.leaving - self._left[home] if self._is_elsewhere(name, home)}
            if left:
                self._left[home] |= left
                yield home, sorted(left)

    def _is_elsewhere(self, model: str, home: int) -> bool:
        other = self._home_of.get(model)
        return other is not None and other != home and self._linked[other] and self._has(other, model)

    def _has(self, home: int, model: str) -> bool:
        said = self._said[home]
        return said is not None and model in said.models

    def _look_at(self, models: Iterable[str]) -> None:
        for model in models:
            home = self._choice(model)
            if home is None:
                self._home_of.pop(model, None)
            else:
                self._home_of[model] = home

    def _choice(self, model: str) -> int | None:
        having = [home for home in range(len(self._said)) if self._has(home, model)]
        if linked := [home for home in having if self._linked[home]]:
            return linked[0]
        leaving = [
            home
            for home, said in enumerate(self._said)
            if said is not None and model in said.leaving and self._linked[home]
        ]
        asked = self._home_of.get(model)
        if asked in leaving:
            return asked
        if having:
            return having[0]
        return leaving[0] if leaving else None


def _all_of(serves: Serves) -> frozenset[str]:
    return serves.models | serves.leaving
