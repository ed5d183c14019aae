"""Deployment generator: from a layout to a repository and a launch file for each worker, and the proxy's configuration.

    from tidegate_repo_generator.deploying.deploy import deploy

    deploy(Path("layout.json"), Path("deployment"), {"resnet": Path("resnet-blocks")})

`deploy` is the entry point; `sources` opens the models, `matching` checks the layout against blocks and partitions,
`places` renames its nodes and assigns folders and ports to workers, `slices` binds each worker to its device,
`launch` writes the files that start them, `repositories` the models that they load, with
TensorRT engines. For full Tritons `node_files` adds the files for each node: the MIG partitioning of its GPUs, `mps`
the control daemons of shared ones, `compose` and `kubernetes` the same workers in containers.
"""
