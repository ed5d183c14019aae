"""Fronts: processes that clients are connected to, where one process is not enough for all of them.

A front speaks gRPC and HTTP, ends TLS, looks at credentials, bounds what clients hold, and passes what they ask on to
the home: the process with the engine, the policy and the ways to the Tritons. The home sees the same calls as if its
clients were its own. docs/decisions/0064-fronts.md says why it is done so.

    supervisor.py       starts home and fronts, and starts anew those that end
    front.py            a front
      relayed_call.py       a gRPC call, as the front passes it on; relayed_exchange.py: an HTTP request
    link.py, frames.py  what fronts and home say to each other
    home.py             the home's side
      remote_call.py        a gRPC call, as the home sees it; remote_exchange.py: an HTTP request
"""
