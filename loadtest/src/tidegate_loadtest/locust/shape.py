"""Load shape of an open loop: one user per sending process; it ends with the schedule."""

from locust import LoadTestShape

from tidegate_loadtest.locust.coordinator import Coordinator


class ScheduleShape(LoadTestShape):  # type: ignore[misc]
    """Load shape that Locust queries every second for the number of users."""

    def __init__(self, conductor: Coordinator) -> None:
        super().__init__()
        self._conductor = conductor

    def tick(self) -> tuple[int, float] | None:
        """Return (users, spawn rate): as many users as sending processes, or None when all is sent and answered."""
        if self._conductor.ended:
            return None
        senders = len(self._conductor.workers)
        return senders, max(1, senders)
