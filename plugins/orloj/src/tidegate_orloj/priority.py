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
        self.batches = len(latency.density) if latency.density.ndim > 2 else 1
        """How many batches of a size, by what they hold, the latency is of."""
        factor = 1 / (latency.mean_ms * b)[..., None]
        widths_ms = np.diff(self.edges_ms)
        # In a narrow bin exp(-b*w) is nearly 1: taken from 1, it would leave rounding errors alone.
        gains = latency.density * -np.expm1(-b * widths_ms)
        apart_ms = self.edges_ms[None, :] - self.edges_ms[1:, None]
        sums = gains @ np.where(apart_ms >= 0, np.exp(-b * np.maximum(apart_ms, 0.0)), 0.0)
        density = np.concatenate((latency.density, np.zeros((*latency.density.shape[:-1], 1))), axis=-1)
        # Column 0 is of those whose time is below every edge: they have no chance left.
        none = np.zeros((*latency.density.shape[:-1], 1))
        self._slope: Floats = np.concatenate((none, factor * (sums - density)), axis=-1)
        self._constant: Floats = np.concatenate((none, factor * density), axis=-1)
        self._lower_ms: Floats = np.concatenate(([0.0], self.edges_ms))
        self._next_ms: Floats = np.concatenate(([-np.inf], self.edges_ms))

    def lines(self, app: NDArray[np.intp], due_ms: Floats, now_ms: float) -> tuple[Floats, Floats, Floats]:
        """`alpha, beta, milestone`: the priority is `alpha * exp(b*t) + beta` from now until the milestone.

        `app`, `due_ms`: application and deadline of each request; all instants in ms from one base. Where the latency
        is that of several batches, so are alpha and beta (`alpha[..., request]`).
        """
        at = np.searchsorted(self.edges_ms, due_ms - now_ms, side="right")
        lower_ms = self._lower_ms[at]
        alpha: Floats = self._slope[..., app, at] * np.exp(self.b * np.minimum(lower_ms - due_ms, -now_ms))
        milestone: Floats = due_ms - self._next_ms[at]
        return alpha, self._constant[..., app, at], milestone

    def lines_of_steps(
        self, app: NDArray[np.intp], steps: Sequence[tuple[Floats, float]], now_ms: float
    ) -> tuple[Floats, Floats, Floats]:
        """The same of a cost that rises in steps: a sum of single steps (Appendix B), each its instants and cost."""
        drawn = [(cost, *self.lines(app, due_ms, now_ms)) for due_ms, cost in steps]
        alpha: Floats = sum((cost * slope for cost, slope, _, _ in drawn[1:]), drawn[0][0] * drawn[0][1])
        beta: Floats = sum((cost * constant for cost, _, constant, _ in drawn[1:]), drawn[0][0] * drawn[0][2])
        milestone: Floats = np.min([until for _, _, _, until in drawn], axis=0)
        return alpha, beta, milestone
