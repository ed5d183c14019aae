"""A deployment on a cluster of Ray (`tidegate up --ray`): its Tritons, shards and frontends are actors on Ray's nodes.

Ray says where each is; this process, the driver, starts them, sees when one is lost, has it started anew wherever Ray
finds room, and tells the others its new address. Decision 74 says why it is done so.

    plan          what is to be placed: devices with their Tritons, shards, frontends, and what each takes of a node
      shard_layouts       a layout parted among shards
    role_configs     the configuration that each shard and each frontend is given
    files         the files that go with them, through Ray's object store
    actors        what runs on the nodes
      node_folder    their folders there
      role          a `tidegate serve` in a role, beside its actor; child: how it begins
    supervisor    what runs here
      supervised_part          one of those that it looks after
    session       from the address of a cluster to clients that are served
"""
