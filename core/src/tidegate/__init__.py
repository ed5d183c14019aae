"""Tidegate, a scheduling proxy for NVIDIA Triton: pip-installed policies decide what runs together, when and where.

Packages and modules; each imports only those below it:

    entry_point  what starts first: `tidegate --version`, and otherwise the
    cli          `tidegate` command; other distributions add subcommands; commands: those of this distribution
    recommend    which policy and hardware to use for given traffic: simulates all that apply
    testing      test kit for authors of policies: Playbook, check_policy, PolicyConformance, pytest fixtures
    sim          the simulator: the engine under virtual time with simulated workers
    engine       state of requests and workers, fair queueing, learned latency; checks every command of a policy
    host         finds plugins and selects them by name
    workload     scenarios and arrivals, shared by simulator and load test
    control      controllers: plugins that change the layout at run time
    toolkit      building blocks of policies: queues, idle workers, batch formation
    schemas      files that distributions exchange: layout, deployment, profiles
    observation  observers of an engine, and the reducer that computes every metric
    report       building blocks of HTML reports: charts, tables, the frame
    api          the contract with plugins; terminal: terminal output; parallel_backend: parallel runs

Beside this distribution: `tidegate-proxy` (drives the same engine live, in front of Triton), `tidegate-baselines`,
`tidegate-symphony`, `tidegate-ppipe` and `tidegate-orloj` (policies), `tidegate-repo-generator`,
`tidegate-triton-models`, `tidegate-loadtest`. Terms are in docs/reference/glossary.md.
"""
