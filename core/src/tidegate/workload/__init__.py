"""The load that a model is asked to carry: shared by the simulator and the load test."""

from tidegate.workload.arrivals import Arrivals, Gamma, Poisson, Uniform

__all__ = ["Arrivals", "Gamma", "Poisson", "Uniform"]
