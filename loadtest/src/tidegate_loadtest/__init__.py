"""Load on a Triton server, or on Tidegate in front of it, and the latency and outcomes that clients see.

An *open loop* sends on a schedule whatever the server does; a *closed loop* is N callers who wait for their answers.

commands/          `tidegate loadtest`, `compare`, `profile`, `profile-shares`, `fit-interference`; cli: the generator
scenario_run       runs a scenario live: BEGIN HERE
  live               sends its requests when the simulator has them arrive; scenario_requests: makes their tensors
  emulated           its cluster on this machine, of emulated GPUs; emulated_layout: of several classes of GPUs;
                     processes: starts and stops the processes
  rate_sweep         runs it at several rates, past saturation; rate_sweep_report: as HTML
  slo_evaluation     the measured results in the columns of a simulated run
comparison/        several servers under the same load, in rounds, and which differences are significant
locust/            the same load from Locust: its web page, closed loops of users, many processes, HTTP too;
                     locust_command: `tidegate-locust`
open_loop          requests on a schedule; closed_loop: callers who wait; recorder: the outcome of each request
result             one row per request, and the summary; report: as a table; progress_bar: progress in the terminal
server_stats       the server's batch sizes and how busy its instances were, by its own statistics
profiler           the latency of a model by shape and rows, measured through its server
                     requested_shapes: which shapes to measure; profile_table: the result as text; hardware: the GPU's
                     name
  profiling_run      several models, one after the other; profilable_models: which of a server's can be
interference/      how models slow each other down on one GPU, learned from measured runs
connection         the connection to the server; tls: its certificates
model_inputs       random tensors; shapes: of which sizes; input_files: real ones
"""
