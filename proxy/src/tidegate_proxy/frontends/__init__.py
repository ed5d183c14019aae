"""Fronts: processes that clients are connected to, where one process is not enough for all of them.

A front speaks gRPC and HTTP, ends TLS, looks at credentials, bounds what clients hold, and passes what they ask on to
a home: a process with an engine, a policy and the ways to Tritons. There is one home, which has all models, or several,
each with a part of them. A home sees the same calls as if its clients were its own.
Decision 67 says why it is done so.

    supervisor.py       starts homes and fronts, and starts anew those that end
    front.py            a front
      relayed.py            a gRPC call, an HTTP request and a stream, as the front passes them on
      home_line.py          a home, as the front knows it
      routes.py             which home is asked for which model
      together.py           what concerns all homes, answered as by one server
    link.py, frames.py  what fronts and homes say to each other
      address.py            where they find each other, and how they prove to be who they are
    home.py             a home's side, and its servers, whose clients the fronts have
      remote.py             a gRPC call and an HTTP request, as the home sees them
"""
