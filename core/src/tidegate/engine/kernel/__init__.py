"""The engine itself: applies one event after the other to the state, calls the policy and checks its commands.

engine           the interface of drivers, with events that are rejected, and the observers: BEGIN HERE
event_handlers   applies an event to the state
policy_runner    calls the policy, checks its commands (invariants) and applies them, and replaces one that fails
state            the state of an engine, with the current policy and how another one takes over
in_flight        batches that were dispatched, and when a busy worker may be given its next batch
validation       consistency checks of the state, in tests
"""
