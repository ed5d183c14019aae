"""Load on a Triton, or on a Tidegate in front of one, and what the clients saw of it.

An *open loop* sends on a schedule whatever the server does; a *closed loop* is N callers who wait for their answers.
Both give a `RunResult`, one row per request; its `summary(slo_ms)` judges the answers. `measure_usage` reads, from the
server's own statistics, how large its batches and how busy its instances were meanwhile.

`tidegate loadtest` sends a scenario's requests in an open loop (live), to a server that runs or to a cluster that it
sets up with emulated GPUs (emulated, processes), and judges the run in the columns of a simulated one (judge).

`locust` is the same load from Locust: in its web page, closed loops of users, several processes and machines, HTTP too.
"""
