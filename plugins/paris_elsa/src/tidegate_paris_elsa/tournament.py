"""Tournament tree: numbers by place, with their minimum and the first small enough one in logarithmic time."""

from tidegate.api import NEVER_NS


class Tournament:
    """Tournament tree over places 0, 1, 2, ... with a number each; NEVER_NS by default.

    Operations take O(log places).
    """

    __slots__ = ("_least", "_size")

    def __init__(self) -> None:
        self._size = 1
        self._least = [NEVER_NS, NEVER_NS]
        """A binary tree in an array: the root at 1, below node n the nodes 2n and 2n + 1, the places at the bottom."""

    @property
    def least(self) -> int:
        """Smallest number; NEVER_NS if none is set."""
        return self._least[1]

    def __setitem__(self, place: int, number: int) -> None:
        """Set the number of a place; NEVER_NS: it has none."""
        while place >= self._size:
            self._grow()
        least, node = self._least, self._size + place
        if least[node] == number:
            return
        least[node] = number
        while node > 1:
            number = min(number, least[node ^ 1])
            node >>= 1
            if least[node] == number:
                return
            least[node] = number

    def first_within(self, limit: int) -> int | None:
        """Return the first place whose number is at most `limit`, which is below NEVER_NS; None if there is none."""
        least, node = self._least, 1
        if least[1] > limit:
            return None
        while node < self._size:
            node *= 2
            if least[node] > limit:
                node += 1
        return node - self._size

    def _grow(self) -> None:
        bottom = self._least[self._size :]
        self._size *= 2
        self._least = [NEVER_NS] * self._size + bottom + [NEVER_NS] * len(bottom)
        for node in range(self._size - 1, 0, -1):
            self._least[node] = min(self._least[2 * node], self._least[2 * node + 1])
