"""The policy `auto`: Symphony until the driver's tuner finds a policy that suits the traffic better."""

from tidegate.control.settings import TuningOptions
from tidegate_symphony.policy import Symphony, SymphonyOptions


class AutoOptions(TuningOptions, SymphonyOptions):
    """Options of the policy `auto`: those of the tuner, and those of Symphony, which decides first."""


class Auto(Symphony):
    """Symphony, which a driver replaces while it serves (`tidegate.control.settings`)."""

    Options = AutoOptions
