"""Load generator for a Triton server, or Tidegate in front of it: measures latency and outcomes as clients see them.

commands/          `tidegate loadtest`, `compare`, `profile`, `profile-shares`, `fit-interference`
scenario_run       runs a scenario live: BEGIN HERE
  live               sends its requests at their arrivals; scenario_requests: makes their tensors
  emulated           its cluster on this machine, of emulated GPUs; emulated_layout: of several device classes;
                     processes: starts and stops the processes
  rate_sweep         runs it at several rates, past saturation; the report as HTML
  slo_evaluation     the measured results in the columns of a simulated run
  server_slos        the SLOs of a Tidegate, beside those of the scenario
  tenant_headers     headers that name the tenant and the client of each request
comparison/        several servers under the same load, in rounds, and which differences are significant
locust/            the same load from Locust: its web page, closed loops of users, many processes, HTTP too;
                     locust_command: `tidegate-locust`
open_loop          requests on a schedule, and the outcome of each
result             one row per request, and the summary; progress_bar: progress in the terminal
server_stats       batch sizes and utilization of a server, from its own statistics
profiler           measures the latency of a model by shape and rows, through its server
                     requested_shapes: the shapes to measure; profile_table: the result as text; hardware: the GPU's
                     name
  profiling_run      several models of a server, one after the other
interference/      slowdown of models that share a GPU, learned from measured runs
connection         connection to the server, with TLS
model_inputs       random tensors; shapes: their sizes; input_files: tensors from files
"""
