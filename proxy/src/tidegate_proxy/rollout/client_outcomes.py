"""Outcomes of requests at both versions of a rollout, by client where versions are drawn by client."""

from dataclasses import dataclass, replace
from typing import Final

from tidegate_proxy.rollout.comparison import BLOCK_NS, wilson

MAX_CLIENTS: Final = 10_000
"""Largest number of clients per version that are distinguished; further ones count as one."""
MIN_CLIENT_ERRORS: Final = 20
"""Number of a client's errors from which on it gets the stable version again."""
MIN_CLIENT_REQUESTS: Final = 20
"""Number of its requests at the stable version from which on they are compared with those at the candidate."""
DEPARTURE_NS: Final = 150 * BLOCK_NS
"""Time in ns without requests after which a returned client is taken to have departed: 150 blocks, five minutes."""
CLIENT_Z: Final = 4.0
"""Standard deviations of the intervals of one client: there may be many clients, and each is looked at."""
_OTHERS: Final = "\0"
"""Name of the clients beyond `MAX_CLIENTS`; no client has it."""


@dataclass(slots=True)
class OutcomeCounts:
    """Ended requests of one client, or of several."""

    ended: int = 0
    late: int = 0
    """Requests that were not answered within the SLO, those with errors among them."""
    errors: int = 0

    def add(self, *, is_late: bool, is_error: bool) -> None:
        """Count a request that has ended."""
        self.ended += 1
        self.late += is_late
        self.errors += is_error

    def remove(self, part: "OutcomeCounts") -> None:
        """Subtract a part of the requests."""
        self.ended -= part.ended
        self.late -= part.late
        self.errors -= part.errors

    def bad(self, comparison: str) -> int:
        """Return the number of requests that count against their version. `comparison`: "attainment" or "errors"."""
        return self.errors if comparison == "errors" else self.late


class ClientOutcomes:
    """Outcomes at both versions, in total and by client.

    A client whose requests clearly fail at the candidate gets the stable version again. If they fail there as well,
    the client is at fault and left out; if they do not, the candidate is at fault.

    A client that departs before that is left out as well, as long as it is the only one.

    Otherwise nothing is said by one client alone: the worst one of each version is left out (`rest`).
    """

    def __init__(self, tolerance: float) -> None:
        """Create it without outcomes. `tolerance`: loss that counts as none."""
        self._tolerance = tolerance
        self._total = {True: OutcomeCounts(), False: OutcomeCounts()}
        """Counts by whether the candidate had the requests."""
        self._clients: dict[bool, dict[str, OutcomeCounts]] = {True: {}, False: {}}
        """The same by client; empty if versions are drawn by request."""
        self._returned: dict[str, OutcomeCounts] = {}
        """Clients that get the stable version again, with the outcomes of their requests since then."""
        self._latest_ns: dict[str, int] = {}
        """End of the latest request of each of them."""
        self._departed: frozenset[str] = frozenset()
        """Clients among these that sent too few requests since then, and send none any more."""

    def is_returned(self, client: str) -> bool:
        """Return whether a client gets the stable version again."""
        return client in self._returned

    @property
    def undecided(self) -> int:
        """Number of returned clients with too few requests since to tell who is at fault."""
        undecided = (client for client, since in self._returned.items() if since.ended < MIN_CLIENT_REQUESTS)
        return sum(client not in self._departed for client in undecided)

    def settle(self, now_ns: int) -> None:
        """Find the undecided clients that have departed: a verdict does not wait for them. One may come back."""
        self._departed = frozenset(
            client
            for client, since in self._returned.items()
            if since.ended < MIN_CLIENT_REQUESTS and now_ns - self._latest_ns[client] > DEPARTURE_NS
        )

    def add(self, client: str, ended_ns: int, *, is_candidate: bool, is_late: bool, is_error: bool) -> None:
        """Count the end of a request at `ended_ns`, `is_candidate`: at the candidate.

        `client`: whose version was drawn; "": it was drawn for this request. `is_late`: it was not answered within the
        SLO; `is_error`: it has failed, or was invalid.
        """
        if client in self._returned and not is_candidate:
            self._returned[client].add(is_late=is_late, is_error=is_error)
            self._latest_ns[client] = ended_ns
            return
        self._total[is_candidate].add(is_late=is_late, is_error=is_error)
        if not client:
            return
        clients = self._clients[is_candidate]
        if client not in clients and len(clients) >= MAX_CLIENTS:
            client = _OTHERS
        counts = clients.setdefault(client, OutcomeCounts())
        counts.add(is_late=is_late, is_error=is_error)
        if is_candidate and is_error and client != _OTHERS and self._is_to_return(client, counts):
            self._returned[client] = OutcomeCounts()
            self._latest_ns[client] = ended_ns

    def _is_to_return(self, client: str, counts: OutcomeCounts) -> bool:
        """Return whether a client gets the stable version again; that harms none, so few requests there suffice."""
        if counts.errors < MIN_CLIENT_ERRORS or client in self._returned:
            return False
        stable = self._total[False]
        usual = stable.errors / stable.ended if stable.ended else 0.0
        return _range(counts)[0] > usual + self._tolerance

    def fault(self) -> str:
        """Return how one client shows that the candidate is at fault; "" if none does."""
        for client, since in self._returned.items():
            counts = self._clients[True][client]
            if since.ended >= MIN_CLIENT_REQUESTS and self._fails_more(counts, since):
                return (
                    f"of one client {counts.errors} of {counts.ended} requests failed at the new version, and "
                    f"{since.errors} of {since.ended} at the stable one, which it got again"
                )
        return ""

    def rest(self, comparison: str, *, is_candidate: bool) -> OutcomeCounts:
        """Return the counts of a version without its worst client, and without clients that show nothing.

        If the stable version has one client only, that one counts. `comparison`: see `OutcomeCounts.bad`.
        """
        rest = self._without_excused_clients() if is_candidate else replace(self._total[False])
        clients = self._clients[is_candidate]
        candidates = [counts for client, counts in clients.items() if not (is_candidate and self._is_excused(client))]
        if candidates and (is_candidate or len(clients) > 1):
            rest.remove(max(candidates, key=lambda counts: counts.bad(comparison)))
        return rest

    def persists(self, comparison: str) -> bool:
        """Return whether the candidate is worse without its worst client, too. `comparison`: as for `rest`."""
        if not self._clients[True]:
            return True
        return self._loses(comparison, self.rest(comparison, is_candidate=True), self._total[False])

    def hides(self, comparison: str) -> bool:
        """Return whether the candidate is worse without the worst client of the stable version."""
        if not self._clients[False]:
            return False
        rest = self.rest(comparison, is_candidate=False)
        return self._loses(comparison, self._without_excused_clients(), rest)

    def _without_excused_clients(self) -> OutcomeCounts:
        """Return the counts of the candidate without clients that fail at both versions, or that departed alone."""
        rest = replace(self._total[True])
        for client in self._returned:
            if self._is_excused(client):
                rest.remove(self._clients[True][client])
        return rest

    def _is_excused(self, client: str) -> bool:
        if client in self._departed:
            return len(self._departed) == 1  # two of them are no coincidence
        since = self._returned.get(client)
        if since is None or since.ended < MIN_CLIENT_REQUESTS:
            return False
        return not self._fails_more(self._clients[True][client], since)

    def _fails_more(self, counts: OutcomeCounts, stable: OutcomeCounts) -> bool:
        """Return whether errors at the candidate are beyond those at the stable version."""
        return _range(counts)[0] > _range(stable)[1] + self._tolerance

    def _loses(self, comparison: str, candidate: OutcomeCounts, stable: OutcomeCounts) -> bool:
        if not candidate.ended or not stable.ended:
            return False
        loss = candidate.bad(comparison) / candidate.ended - stable.bad(comparison) / stable.ended
        return loss > self._tolerance


def _range(counts: OutcomeCounts) -> tuple[float, float]:
    """Return the interval of the fraction of requests with errors of a client that has some requests."""
    return wilson(counts.errors / counts.ended, counts.ended, CLIENT_Z)
