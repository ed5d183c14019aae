"""The straight line by which legs differ from a base profile: least squares with a prior, and what no GPU does."""

from tidegate.api import Profile

FORGETTING = 0.995
"""Weight of an observation after each later one: the last two hundred or so decide."""
SHIFTED, FORGETTING_THEN = 1.0, 0.85
"""What legs take has changed where the last of them stray to one side, by so many times the usual on average: the last
few decide then."""
LATELY = 1 / 16
"""The gain of that average."""
FARTHEST = 5.0
"""A leg counts in it as straying by so many times the usual at most: four in a row make a change, and no fewer."""
RIDGE = 0.02
"""Observations that the prior is worth where legs do not stray at all."""
UNSURE = 0.3
"""How wrong a prior's slope may be, as a share of what legs take per row: who strays by more says less than it does."""


class Correction:
    """`slope * rows / max_rows + offset` in ns: what is added to a base profile.

    Where the sizes of batches do not tell, as where all had one, what the base says of rows stands: so larger batches
    are tried, and smaller ones are not believed to take much less. How much sizes have to tell depends on how far legs
    stray. Whatever they say, a larger batch takes no less than a smaller one, and a row no more in it than alone,
    unless the base has it so.
    """

    def __init__(self, base: Profile) -> None:
        self._most_rows = base.max_rows
        first, last = base.expected[0], base.expected[-1]
        steep = (last - first) / (1 - 1 / self._most_rows) if self._most_rows > 1 else 0.0
        self._least_slope = -steep
        self._least_offset = min(0.0, steep - last)
        self._law = (0.0, 0.0)
        self._is_law = False
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.slope = self.offset = 0.0
        self.w = self.x = self.xx = self._r = self._xr = 0.0  # weighted sums over observations
        self.t = self.xt = 0.0  # the same of what legs took, rather than of their residuals
        self._usual_ns = 0.0
        self._lately = 0.0

    def at(self, rows: int) -> float:
        """What is added for so many rows."""
        return self.slope * rows / self._most_rows + self.offset

    def believe(self, slope: float, offset: float) -> None:
        """Let this line be the prior, instead of none."""
        self._law, self._is_law = (slope, offset), True
        self._solve()

    def add(self, rows: int, residual_ns: float, taken_ns: float, usual_ns: float, weight: float) -> None:
        """A leg took `taken_ns`, so much longer than the base has it.

        `usual_ns`: how far legs stray on average. `weight`: what it says, beside an average leg.
        """
        x = rows / self._most_rows
        keep = FORGETTING if abs(self._lately) < SHIFTED else FORGETTING_THEN
        self.w = keep * self.w + weight
        self.x = keep * self.x + weight * x
        self.xx = keep * self.xx + weight * x * x
        self._r = keep * self._r + weight * residual_ns
        self._xr = keep * self._xr + weight * x * residual_ns
        self.t = keep * self.t + weight * taken_ns
        self.xt = keep * self.xt + weight * x * taken_ns
        self._usual_ns = usual_ns
        self._solve()

    def strays(self, by: float) -> None:
        """The next leg strays by so many times the usual from what this has it."""
        self._lately += LATELY * (max(-FARTHEST, min(FARTHEST, by)) - self._lately)

    def _solve(self) -> None:
        """Solve the two normal equations within the bounds."""
        slope, offset = self._law
        ridge = (RIDGE + (self._usual_ns * self.w / (UNSURE * self.t)) ** 2) * (self.x / self.w) ** 2
        if self._is_law:
            ridge = max(RIDGE, ridge)
        xx, w = self.xx + ridge, self.w + RIDGE
        xr, r = self._xr + ridge * slope, self._r + RIDGE * offset
        determinant = xx * w - self.x * self.x
        slope, offset = (xr * w - self.x * r) / determinant, (xx * r - self.x * xr) / determinant
        if slope < self._least_slope:
            slope = self._least_slope
            offset = (r - self.x * slope) / w
        if offset < self._least_offset:
            offset = self._least_offset
            slope = max(self._least_slope, (xr - self.x * offset) / xx)
        self.slope, self.offset = slope, offset
