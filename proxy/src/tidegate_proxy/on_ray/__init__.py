"""Deployment on a Ray cluster (`tidegate up --ray`): its Tritons, shards and frontends are actors on Ray's nodes.

Ray places them; this process, the driver, starts them, notices when one is lost, restarts it on any node with room, and
reports its new address to the others. Decision 74 gives the reasons.

    plan          parts to place: devices with their Tritons, shards, frontends, and the resources of each;
                  divides a layout among shards
    role_configs     configuration of each shard and each frontend
    files         their files, sent through Ray's object store
    actors        the actors on the nodes, with their folders
      role          a `tidegate serve` process of an actor, which ends with it
    supervisor    supervises all parts, in the driver
      supervised_part          one of the parts
    session       from the address of a cluster to serving clients
"""
