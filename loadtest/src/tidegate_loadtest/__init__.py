"""Load on a Triton, or on a Tidegate in front of one, and what the clients saw of it.

An *open loop* sends on a schedule whatever the server does; a *closed loop* is N callers who wait for their answers.

commands/          `tidegate loadtest`, `compare`, `profile`, `profile-shares`, `fit-interference`; cli: the generator
scenario_run       a scenario run live: BEGIN HERE
  live               its requests, sent when the simulator has them arrive; scenario_requests: as tensors
  emulated           its cluster on this machine, of emulated GPUs; emulated_layout: of unlike ones
                     processes: what that takes
  rate_sweep         it at several rates, through what is borne; rate_sweep_report: as a page
  judge              what was measured, in the columns of a simulated run
comparison/        several targets, the same load in turn, and what may be concluded
locust/            the same load from Locust: in its web page, closed loops of users, many processes, HTTP too;
                     locust_command: `tidegate-locust`
open_loop          requests on schedule; closed_loop: callers who wait; recorder: what became of each
result             one row per request, and the summary; report: as a table; progress_bar: meanwhile
server_stats       how large the server's batches and how busy its instances were, by its own statistics
profiler           how long a model runs, by shape and rows, measured through its server
                     asked_shapes: with which shapes; profile_table: as people read it; hardware: where it runs
  campaign           several models, one after the other; measurable: which of a server's can be
interference/      how models slow each other down on one GPU, learned from measured runs
connection         the way to the server; tls: where it is secured
model_inputs       random tensors; shapes: of which sizes; input_files: real ones
"""
