"""Deployment on this machine: embedded Tritons for its workers, and the proxy in front of them.

`folder` reads what `tidegate generate` wrote; `tritons` starts and stops the workers; `state` records the running
processes; `background` starts everything in a process of its own, and stops it. `tidegate up` and `tidegate down` are
thin layers over these.
"""
