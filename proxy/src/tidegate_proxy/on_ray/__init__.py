"""Deployment on a Ray cluster (`tidegate up --ray`): its Tritons, shards and frontends are actors on Ray's nodes.

Ray places them; this process, the driver, starts them, notices when one is lost, restarts it on any node with room, and
reports its new address to the others. Decision 74 gives the reasons.

    plan          parts to place: devices with their Tritons, shards, frontends, and the resources of each
      shard_layouts       a layout divided among shards
    role_configs     configuration of each shard and each frontend
    files         their files, sent through Ray's object store
    actors        the actors on the nodes
      node_folder    their folders there
      role          a `tidegate serve` process of an actor; parent_death_signal: ends it with its parent
    supervisor    supervises all parts, in the driver
      supervised_part          one of the parts
    session       from the address of a cluster to serving clients
"""
