"""Locust for models that a Triton or a Tidegate serves (docs/how-to/loadtest.md).

    locust -f loadtest/locustfile.py --headless --host localhost:8101 --scenario scenarios/resnet50.yaml
    locust -f loadtest/locustfile.py --host localhost:8101 --model resnet50 --slo-ms 50     # and the web page

`locust -f loadtest/locustfile.py --help` lists what else can be asked for, in its section "Tidegate".
"""

from tidegate_loadtest.locust.users import TritonUser


class Client(TritonUser):
    """Asks what the options say, as fast as it is answered; `wait_time` would have it think in between."""
