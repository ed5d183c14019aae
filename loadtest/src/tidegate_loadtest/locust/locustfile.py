"""The users of `tidegate-locust`, as a locustfile: Locust finds its users by the file that they are in."""

from tidegate_loadtest.locust.users import TritonUser


class Client(TritonUser):
    """Asks what the options say, as fast as it is answered; `wait_time` would have it think in between."""
