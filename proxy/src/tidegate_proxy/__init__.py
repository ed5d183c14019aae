"""Tidegate live: the only code with an event loop and a network. All that decides happens in one thread.

commands/          what it adds to `tidegate`: serve, check, doctor, init, top, page, triton, up, down, mig
doctor/            what is wrong, or could be better, with a configuration and the Tritons that it names
top/               a running Tidegate, watched from a terminal by its metrics page; live_page/: from a browser
serve              puts the pieces together: BEGIN HERE
proxy              what they are together: it listens, takes up a changed configuration, looks after Tritons, ends
front, streams     the gRPC service that clients see; relay: what of a stream goes on as it is; http/ the HTTP service
inference          what becomes of a request: scheduled, or sent on
  envelope           a request: header, tensors as buffers, what it can be merged with; typed_contents: with raw ones
  client             who waits for it; outcome: what that one is told; refusal: why it is refused, in one word
  heading            what many requests say alike, read once; form: requests that are written alike, not read at all
  passage            a request that cannot be scheduled, on its way to a Triton as it is; routing: to which
  padding            shapes that are brought to common ones; resizing: the one copy that this takes
  shape              what varies in its tensors, in words; applications: of which it is; labels: short and few
  merging            gather envelopes into one request for Triton, scatter the answer; wire: protobuf, uncopied
  deadlines          when a request is due
  waiting_clients    who waits for what; limits: how much may; bounds: what clients hold; spoilers: who spoils batches
driver             drives the engine under the monotonic clock: takes requests, carries out effects
  live_engine        the engine and its effects, one after the other; alarm: when to wake it
  legs               those that run on Tritons; leg_run: one of them; running_legs: the book of them
  spacing            legs that a Triton would merge, one after the other
  recovery           what becomes of the requests of one that failed
  payload            a batch's tensors on their way along its legs, in calls or in shared memory
  membership         Tritons that come and go; outliers: those that fail though they answer probes
  liveness           whether all parts give signs of life; watchdog: who holds the event loop
  faults             what broke
actuation/         brings about the layouts that a controller wants, beside what serves
control            every other call: answered by Tidegate itself, for all Tritons, or by one of them
  fan_out            what concerns every Triton, and whose answer counts; grpc_codec, http/several: how they are asked
  affinity           which Triton keeps a sequence
  client_regions     shared memory of clients; reserved_names: what is not for them; regions: what Tritons are handed
  lifeline           by which others see whether the process that made a region has ended
backend            one Triton; probing: whether it is alive; forwarded: metadata that goes on to it;
                   header_forwarding: headers that its models may see
  guards             what a Triton is not sent, because it would end
gpus               which GPUs and MIG instances this machine has, as NVML tells
discovery          keeps the catalog true; catalog, signature: what the Tritons serve; variants: where they disagree
  starting_profiles  how long that is expected to take at first
  lanes              which of its models run in turn, and on how many workers
  turn_taking        whether more of them should; slowdown: by how much they slow each other down
  kinds              what kind of worker each Triton is; gpus: those of this machine, as NVML tells
  consent            whether a model's requests are merged, run alone or pass through; queue_delay: loaded without one
  batch_verification whether a batch gives the answers that its requests have alone, looked at now and then
  declared_padding   what the operator says of it, held against the model's config
  split_models       models in partitions, which clients see as one
gpus               which GPUs and MIG instances this machine has, as NVML tells
mig/               how they are cut, and how a layout wants them cut (`tidegate mig`)
canary             for a share of the time all is scheduled, else all passes as it is, and both are compared
comparison         what is in time while all is scheduled and while all passes, and how sure the difference is
trial              what passes as it is though it could be scheduled: by shadow or canary
shadow             what passes in shadow mode is shown to a process that simulates what a policy would have gained
settings           what of the configuration may change while requests are under way: one value, swapped as a whole
take_over          several processes on one port, the last of which serves; ports: they are bound before they are served
fronts/            processes that have the clients, where one is not enough; several homes; the supervisor of both
transport/         gRPC over HTTP/2: frames of libnghttp2 in the event loop
access/ configuration/ observability/   TLS and credentials; the file; metrics, statistics, traces, logs
embedded/          the tritonserver of the nvidia-pytriton wheel, started and stopped
deployed/          a deployment on this machine: embedded Tritons and the proxy before them (`tidegate up`)
on_ray/            the same on the nodes of a cluster of Ray (`tidegate up --ray`)
"""
