"""Frontends: processes that hold clients' connections, where one process cannot hold all of them.

A frontend speaks gRPC and HTTP, terminates TLS, checks credentials, applies client limits, and relays requests to a
shard: a process with an engine, a policy and connections to Tritons. There is one shard with all models, or several,
each with a part of them. A shard handles these calls like those of its own clients. Decision 67 gives the reasons.

    supervisor.py       starts and restarts shards and frontends
    frontend.py            a frontend
      frontend_side_calls.py  a gRPC call, an HTTP request and a stream, relayed by the frontend
      shard_connection.py          a frontend's connection to a shard
      routes.py             which shard serves which model
      shard_fanout.py           requests that concern all shards, answered as by one server
    link.py, frames.py  the protocol between frontends and shards
      address.py            addresses and mutual authentication of both
    shard.py             the shard's side, whose clients are at the frontends
      shard_side_calls.py   a gRPC call and an HTTP request, at the shard
"""
