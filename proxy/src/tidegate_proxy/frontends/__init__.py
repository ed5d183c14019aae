"""Frontends: processes that clients are connected to, where one process is not enough for all of them.

A frontend speaks gRPC and HTTP, ends TLS, looks at credentials, bounds what clients hold, and passes what they ask on
to a shard: a process with an engine, a policy and the ways to Tritons. There is one shard, which has all models, or
several, each with a part of them. A shard sees the same calls as if its clients were its own.
Decision 67 says why it is done so.

    supervisor.py       starts shards and frontends, and starts anew those that end
    frontend.py            a frontend
      relayed.py            a gRPC call, an HTTP request and a stream, as the frontend passes them on
      shard_connection.py          a shard, as the frontend knows it
      routes.py             which shard is asked for which model
      shard_fanout.py           what concerns all shards, answered as by one server
    link.py, frames.py  what frontends and shards say to each other
      address.py            where they find each other, and how they prove to be who they are
    shard.py             a shard's side, and its servers, whose clients the frontends have
      remote.py             a gRPC call and an HTTP request, as the shard sees them
"""
