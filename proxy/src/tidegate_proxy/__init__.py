"""Tidegate live: the only code with an event loop and a network. All that decides happens in one thread.

Layers: each package imports those below it, and none above.

commands        what this distribution adds to `tidegate`: serve, check, doctor, init, top, page, triton, up, down, mig
on_ray          a deployment on the nodes of a Ray cluster (`tidegate up --ray`)
app             puts the parts together, and what looks at them: BEGIN with `app.serve`
deployed        a deployment on this machine: embedded Tritons and the proxy in front of them (`tidegate up`)
frontends       processes that hold the clients' connections, where one is not enough; several shards; their supervisor
servers         the gRPC service, its streams and the HTTP service that clients see
rollout         shadow and canary: what passes as it is though it could be scheduled
service         Triton's API over all Tritons: inference, what passes through, control calls, discovery
scheduling      drives the engine: takes requests, runs batches on Tritons, follows Tritons that come, go and fail
observability   metrics, statistics, traces, logs
tritons         the servers behind Tidegate: what they serve, how they are reached, where models run
access          credentials, owners, APIs that are restricted
messages        one inference as bytes: opened, padded, merged, divided
transport       gRPC over HTTP/2 in the event loop; ports, TLS, client limits, hot restart
configuration   the configuration file: its fields, reading it, what may change while requests are under way
base            errors, labels, the watchdog of the event loop
"""
