"""Tidegate's proxy: the only code with an event loop and a network. All decisions are made in one thread.

Layers: each package imports those below it, and none above.

commands        subcommands of `tidegate`: serve, check, doctor, init, view, triton, up, down, mig
on_ray          a deployment on the nodes of a Ray cluster (`tidegate up --ray`)
app             assembles the parts, and supervises them: BEGIN with `app.serve`
deployed        a deployment on this machine: embedded Tritons and the proxy in front of them (`tidegate up`)
frontends       processes that hold clients' connections, where one is not enough; several shards; their supervisor
servers         the gRPC service, its streams and the HTTP service for clients
rollout         shadow mode and canary: bypass of requests that could be scheduled
service         Triton's API over all Tritons: inference, bypass, control calls, discovery
scheduling      runs the engine: admits requests, runs batches on Tritons, follows their membership and failures
observability   metrics, statistics, traces, logs
tritons         the servers behind Tidegate: models, connections, workers
access          credentials, client identity, restricted APIs
messages        inference requests as bytes: parsed, padded, merged, split
transport       gRPC over HTTP/2 in the event loop; ports, TLS, client limits, hot restart
configuration   the configuration file: its fields, the reader, changes while serving
base            errors, labels, the watchdog of the event loop
"""
