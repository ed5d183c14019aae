"""Priority of running a request now rather than later (Equation 2): a line in exp(b*t) between its milestones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidegate_orloj.batch_latency import BatchLatency, Floats

Cost = tuple[float, float]
"""Step of a cost function: (deadline, additional cost once it has passed)."""


MAX_EXPONENT = 600.0
"""Maximum exponent: exp() overflows at 709."""


class PriorityCurve:
    """Priority of requests in batches of one size, per unit of cost, by remaining time.

    With `rem = D - t` in bin j, of lower edge `l_j` and density `h_j`, Equation 2 sums to `p = (S_j - h_j) / (E[L]*b) *
    exp(b*(l_j - rem)) + h_j / (E[L]*b)`, where `S_j` is the sum over the bins below of `h_i * (exp(b*(l2_i - l_j)) -
    exp(b*(l1_i - l_j)))`. No exponent is positive, so nothing overflows.
    """

    def __init__(self, latency: BatchLatency, delay_rate: float) -> None:
        """Compute the curve of a batch latency. `delay_rate`: rate b of the exponential anticipated delay, per ms."""
        self.delay_rate = delay_rate
        self.edges_ms = latency.edges_ms
        self.batches = len(latency.density) if latency.density.ndim > 2 else 1
        """How many batches of a size, by what they hold, the latency is of."""
        factor = 1 / (latency.mean_ms * delay_rate)[..., None]
        density, bins = latency.density, len(self.edges_ms) - 1
        # Column 0 is of those whose time is below every edge: they have no chance left.
        self._slope: Floats = np.zeros((*density.shape[:-1], bins + 2))
        self._constant: Floats = np.zeros((*density.shape[:-1], bins + 2))
        # In a narrow bin exp(-b*w) is nearly 1: taken from 1, it would leave rounding errors alone.
        gains = np.multiply(density, -np.expm1(-delay_rate * np.diff(self.edges_ms)), out=self._slope[..., 2:])
        _fade(gains, delay_rate * self.edges_ms)
        self._slope[..., 1:-1] -= density
        self._slope *= factor
        np.multiply(density, factor, out=self._constant[..., 1:-1])
        self._lower_ms: Floats = np.concatenate(([0.0], self.edges_ms))
        self._next_ms: Floats = np.concatenate(([-np.inf], self.edges_ms))

    def lines(self, app: NDArray[np.intp], due_ms: Floats, now_ms: float) -> tuple[Floats, Floats, Floats]:
        """Return `alpha, beta, milestone`: the priority is `alpha * exp(b*t) + beta` from now until the milestone.

        `app`, `due_ms`: application and deadline of each request; all times in ms from one base. If the latency has
        several batch mixtures, so do alpha and beta (`alpha[..., request]`).
        """
        at = np.searchsorted(self.edges_ms, due_ms - now_ms, side="right")
        lower_ms = self._lower_ms[at]
        alpha: Floats = self._slope[..., app, at] * np.exp(self.delay_rate * np.minimum(lower_ms - due_ms, -now_ms))
        milestone: Floats = due_ms - self._next_ms[at]
        return alpha, self._constant[..., app, at], milestone

    def lines_of_steps(
        self, app: NDArray[np.intp], steps: Sequence[tuple[Floats, float]], now_ms: float
    ) -> tuple[Floats, Floats, Floats]:
        """Return the same for a cost that rises in steps: the sum over the steps (Appendix B).

        `app`: application of each request; `steps`: deadlines of all requests, in ms, and cost of each step; `now_ms`:
        current time in ms.
        """
        (due_ms, cost), *others = steps
        alpha, beta, milestone = self.lines(app, due_ms, now_ms)
        alpha *= cost
        beta *= cost
        for due_ms, cost in others:
            slope, constant, until = self.lines(app, due_ms, now_ms)
            alpha += cost * slope
            beta += cost * constant
            milestone = np.minimum(milestone, until)
        return alpha, beta, milestone


def _fade(gains: Floats, edges: Floats) -> None:
    """Add to each bin's gain those of the bins below, each less by `exp(-d)`, d from the upper edge of its bin to here.

    As sums that grow, in place, over spans that `exp` can hold. A product with the matrix of all distances takes
    longer, and libraries of linear algebra share it among threads: who is woken for so little is waited for.
    """
    first, last = 0, len(edges) - 1
    while first < last:
        until = max(first + 1, int(np.searchsorted(edges, edges[first] + MAX_EXPONENT, side="right")) - 1)
        growth = np.exp(np.minimum(edges[first + 1 : until + 1] - edges[first], MAX_EXPONENT))
        span = gains[..., first:until]
        span *= growth
        if first:
            span[..., 0] += gains[..., first - 1]
        np.cumsum(span, axis=-1, out=span)
        span /= growth
        first = until
