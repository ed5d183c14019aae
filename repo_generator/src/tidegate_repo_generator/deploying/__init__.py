"""From a layout to a folder that runs: a repository and a launch file for each worker, the proxy's configuration.

    from tidegate_repo_generator.deploying.deploy import deploy

    deploy(Path("layout.json"), Path("deployment"), {"resnet": Path("resnet-blocks")})

`deploy` is the whole of it; `sources` says where models come from, `matching` checks the layout against blocks and
partitions, `places` finds folders and ports for the workers, `slices` says what binds one to its device, `launch` and
`proxy_config` write what starts them, `repositories` what they load, `engines` describes TensorRT's. For full Tritons
`node_files` adds what the nodes need: `mig_parted` how their GPUs are cut, `mps` the control daemons of those that are
shared, `compose` and `kubernetes` the same workers in containers.
"""
