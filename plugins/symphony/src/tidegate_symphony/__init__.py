"""Symphony: deferred batch scheduling (Chen et al.), split into threads as in its Appendix D.

policy                 turns events into calls of the two threads below, and their decisions into commands; `auto`,
                       the policy that a tuner replaces while serving
model_thread           one queue: its candidate batch, and when that may start
batch_selection        which requests to batch, if they differ or not all can meet their deadlines
applications           the latency of batches by application: the fast ones, and all
latency_bounds         the latency that workers guarantee for a queue, and the lower latency that is likely
required_batch_size    the batch size that the workers need to sustain the load
  natural_batching     whether queues form batches without waiting
worker_headroom        how many workers long batches leave to requests with tight deadlines
rank_thread            all queues: which candidate runs on which worker, and when
autoscaler             the number of workers that the load needs (section 3.5); advised_workers: a controller that
                       provides it
subclusters            the planner: assigns models to sub-clusters (Appendix A); its baseline
  subclusters_plan     its documents
  subclusters_milp     the integer program; subclusters_start: the start of its search
"""
