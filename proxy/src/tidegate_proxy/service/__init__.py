"""Triton's API over all Tritons.

inference           schedules an inference request, or bypasses scheduling
passthrough         sends a bypassed request to a Triton and relays its response; sequences keep their Triton; others
                    go where the expected work is least
graph_runs          ensembles whose steps are scheduled as stages with one deadline
graph_load          which ensembles are expanded into stages under `scheduling: auto`
stream_passthrough  bypassed streams
open_sequences      sequences that have begun, each at the Triton that keeps it
slot_sequences      sequences of models with slots: each occupies one from its first request to its last response
slot_inference      inferences that wait for a slot of their model
control             every other call: answered by Tidegate, by one Triton, or for all Tritons
fan_out             calls that concern every Triton, and how their answers are combined
discovery           keeps the catalog current, and probes whether each Triton is alive
load_turns          whose model a Triton loads next, by the load time that clients have had
on_demand           loads models for their first requests, and evicts others where memory is scarce
batch_verification  checks that a batch gives the responses that its requests get alone
"""
