"""Tidegate, a scheduling proxy for NVIDIA Triton: pip-installed policies decide what runs together, when and where.

Packages and modules; each imports only those below it:

    start        the entry point: `tidegate --version`, and otherwise the
    cli          `tidegate` command; other distributions add subcommands
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
`tidegate-triton-models`, `tidegate-loadtest`.

Glossary, one meaning each:

    request    one inference call of a client: model, rows (its size along the batch dimension), arrival, deadline
    worker     one place that runs one batch at a time: a Triton on a GPU, MIG slice or MPS share, or a lane of one
    partition  consecutive blocks of a model, loaded as a Triton model of its own; an unsplit model is one partition
    device     one GPU of a machine; slice: how much of it a worker has, all, a MIG instance or an MPS share
    kind       of workers that are equally fast; it follows from device and slice, `A100/mps-50`, unless it is named
    shape      what varies in a request's tensors beyond the batch, `x:3,48,320`: those of one shape take equally long
    app        what a client says a request is for: an application; how long those of one run alone is a distribution
    stage        one partition of one batch on one worker: planned start, duration; then actual
    batch      requests that run together along the stages of one path
    profile    expected and planned latency of (partition, kind of worker, shape), by rows
    expected   what a batch takes, its centre; planned: what may be promised, a high quantile
    client     whose a request is; those who wait for the same workers have them in turn
    policy     data plane: turns events into commands
    controller control plane at run time: turns what was observed into a layout; its governor may refuse that
    stimulus   what an engine is told: an event, or what only its driver knows; effect: what its driver has to do then
    observer   watches the stimuli of an engine, with their commands and effects
    story      what happened to one request, and why
    SLO        how long after its arrival a request may be answered; its deadline is that instant
    attainment share of the requests that were answered within their SLO; goodput: how many those are per second
"""
