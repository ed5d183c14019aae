"""The simulator: the proxy's engine and policies under virtual time, with simulated workers."""

from tidegate.sim.simulation import Simulation, exact_service

__all__ = ["Simulation", "exact_service"]
