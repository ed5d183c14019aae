"""What it is worth to run a request now rather than later: Equation 2, as a line in exp(b*t) between its milestones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidegate_orloj.batch_latency import BatchLatency, Floats

Cost = tuple[float, float]
"""A step of a cost function: (deadline, what it costs more once that has passed)."""


class Curve:
    """The priority of requests in batches of one size, for a unit of cost, as a function of the time that is left.

    With `rem = D - t` in bin j, of lower edge `l_j` and density `h_j`, Equation 2 sums to
    `p = (S_j - h_j) / (E[L]*b) * exp(b*(l_j - rem)) + h_j / (E[L]*b)`, where `S_j` is the sum over the bins below of
    `h_i * (exp(b*(l2_i - l_j)) - exp(b*(l1_i - l_j)))`. No exponent in this is positive, so that nothing overflows.
    """

    def __init__(self, latency: BatchLatency, b: float) -> None:
        """`b`: of the exponential distribution of the anticipated delay, per millisecond."""
        self.b = b
        self.edges_ms = latency.edges_ms
        factor = 1 / (latency.mean_ms * b)[:, None]
        count, bins = latency.density.shape
        sums = np.zeros((count, bins + 1))
        widths_ms = np.diff(self.edges_ms)
        # In a narrow bin exp(-b*w) is nearly 1: taken from 1, it would leave rounding errors alone.
        fades, gains = np.exp(-b * widths_ms), -np.expm1(-b * widths_ms)
        for at in range(bins):
            sums[:, at + 1] = sums[:, at] * fades[at] + latency.density[:, at] * gains[at]
        density = np.hstack((latency.density, np.zeros((count, 1))))
        # Column 0 is of those whose time is below every edge: they have no chance left.
        none = np.zeros((count, 1))
        self._slope: Floats = np.hstack((none, factor * (sums - density)))
        self._constant: Floats = np.hstack((none, factor * density))
        self._lower_ms: Floats = np.concatenate(([0.0], self.edges_ms))
        self._next_ms: Floats = np.concatenate(([-np.inf], self.edges_ms))

    def lines(self, app: NDArray[np.intp], due_ms: Floats, now_ms: float) -> tuple[Floats, Floats, Floats]:
        """`alpha, beta, milestone`: the priority is `alpha * exp(b*t) + beta` from now until the milestone.

        `app`, `due_ms`: application and deadline of each request; all instants in ms from one base.
        """
        at = np.searchsorted(self.edges_ms, due_ms - now_ms, side="right")
        lower_ms = self._lower_ms[at]
        alpha: Floats = self._slope[app, at] * np.exp(self.b * np.minimum(lower_ms - due_ms, -now_ms))
        milestone: Floats = due_ms - self._next_ms[at]
        return alpha, self._constant[app, at], milestone

    def lines_of_steps(
        self, app: NDArray[np.intp], steps: Sequence[tuple[Floats, float]], now_ms: float
    ) -> tuple[Floats, Floats, Floats]:
        """The same of a cost that rises in steps: a sum of single steps (Appendix B), each its instants and cost."""
        alpha, beta, milestone = np.zeros(len(app)), np.zeros(len(app)), np.full(len(app), np.inf)
        for due_ms, cost in steps:
            slope, constant, until = self.lines(app, due_ms, now_ms)
            alpha += cost * slope
            beta += cost * constant
            milestone = np.minimum(milestone, until)
        return alpha, beta, milestone
