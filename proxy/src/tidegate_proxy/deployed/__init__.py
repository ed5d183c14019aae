"""A deployment that runs on this machine: embedded Tritons for its workers, and the proxy before them.

`folder` reads what `tidegate generate` wrote; `tritons` starts and stops the workers; `state` says what runs, and
whether anything does; `background` starts it all in a process of its own, and ends that. `tidegate up` and `tidegate
down` are thin layers over these.
"""
