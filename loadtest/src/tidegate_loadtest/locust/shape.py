"""The load shape of an open loop: one user stands for each sender; it ends when the schedule has ended."""

from locust import LoadTestShape

from tidegate_loadtest.locust.coordinator import Coordinator


class ScheduleShape(LoadTestShape):  # type: ignore[misc]
    """Locust asks it every second how many users there should be."""

    def __init__(self, conductor: Coordinator) -> None:
        super().__init__()
        self._conductor = conductor

    def tick(self) -> tuple[int, float] | None:
        """As many users as senders at once, until all is sent and answered."""
        if self._conductor.ended:
            return None
        senders = len(self._conductor.workers)
        return senders, max(1, senders)
