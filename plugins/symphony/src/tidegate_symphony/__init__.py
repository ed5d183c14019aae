"""Symphony: deferred batch scheduling (Chen et al.), split as in its Appendix D.

policy         glue: events to the two threads below, their decisions to commands
model_thread   what concerns one queue only: the candidate, and when it may start
choice         which requests had better run together, where they differ or where all cannot be in time
applications   how long batches take of those whose applications are quick, and of all
outlook        what workers promise a kind of requests, and what may be hoped for beyond that
batch_need     how large batches have to be for the workers to bear the load
  kind_load, eager_merging              what arrives of a kind, and whether it merges where no batch waits
room           how many workers batches that last long leave to requests with little time
rank_thread    what concerns all: which candidate meets which worker, and when
autoscaler     how many workers the load wants (section 3.5); advised_workers: a controller that sees to it
subclusters    the planner: models among sub-clusters (Appendix A); subclusters_random is its baseline
  subclusters_problem, subclusters_plan   its documents
  subclusters_milp                        the integer program; subclusters_start: where its search begins
"""
