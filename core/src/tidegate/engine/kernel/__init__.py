"""The engine itself: applies one event after the other to the state, calls the policy and checks its commands.

engine           the interface of drivers: BEGIN HERE
event_handlers   applies an event to the state
policy_runner    calls the policy, and replaces one that fails
commands         checks the policy's commands (invariants) and applies them
state            the state of an engine
in_flight        batches that were dispatched; early_dispatch: when a busy worker may be given its next batch
policy_handover  the current policy, how another one takes over, and when one that failed is tried again
refusals         events that are rejected
observers        the observers of an engine; validation: consistency checks of the state, in tests
"""
