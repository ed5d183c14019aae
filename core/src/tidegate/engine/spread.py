"""How far legs stray from what is expected of them: some by the same at any size, some by a share of what they take."""

FADING = 0.98
"""Weight of a leg after each later one."""
PRIOR = 2.0
"""Legs that the prior is worth: half is the same at any size, half is a share. It decides where all take as long."""
LEAST = 1e-6
"""The least share: legs that never stray have some spread, too."""


class Spread:
    """The mean absolute deviation of legs by what they are expected to take: `same_ns + share * expected_ns`.

    A delay of the host or of a network is the same at any size; a GPU that others disturb strays in proportion.
    """

    __slots__ = ("_d", "_t", "_td", "_tt", "_w", "same_ns", "share")

    def __init__(self) -> None:
        self._w = self._t = self._tt = self._d = self._td = 0.0  # weighted sums over legs
        self.same_ns = 0.0
        self.share = LEAST

    def add(self, expected_ns: float, deviation_ns: float) -> None:
        """A leg of which so much was expected took so much more, or less (absolute): what that tells, `learn` says."""
        self._w = FADING * self._w + 1
        self._t = FADING * self._t + expected_ns
        self._tt = FADING * self._tt + expected_ns * expected_ns
        self._d = FADING * self._d + deviation_ns
        self._td = FADING * self._td + expected_ns * deviation_ns

    def learn(self) -> None:
        """Take what legs have told: least squares with the prior, of which neither part is negative."""
        mean_ns, deviation_ns = self._t / self._w, self._d / self._w
        w, d = self._w + PRIOR, self._d + PRIOR * deviation_ns / 2
        tt, td = self._tt + PRIOR * mean_ns * mean_ns, self._td + PRIOR * mean_ns * deviation_ns / 2
        determinant = w * tt - self._t * self._t
        same_ns, share = (tt * d - self._t * td) / determinant, (w * td - self._t * d) / determinant
        if same_ns < 0:
            same_ns, share = 0.0, td / tt
        elif share < 0:
            same_ns, share = d / w, 0.0
        self.same_ns, self.share = same_ns, max(LEAST, share)

    @property
    def is_known(self) -> bool:
        """Whether anything was learned of it."""
        return self.same_ns > 0 or self.share > LEAST

    def at(self, expected_ns: float) -> float:
        """The mean absolute deviation of a leg of which so much is expected, in ns; positive."""
        return self.same_ns + self.share * max(1.0, expected_ns)
