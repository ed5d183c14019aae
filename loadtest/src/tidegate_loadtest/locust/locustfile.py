"""Locustfile of `tidegate-locust`: Locust finds its users by the file that defines them."""

from tidegate_loadtest.locust.users import TritonUser


class Client(TritonUser):
    """User that sends the requests of the options, each after the last response; set `wait_time` for think time."""
