"""The engine itself: one event after the other enters the books, the policy is told, its commands are checked.

engine          what drivers call: BEGIN HERE
intake          what happened enters the books
policy_runner   who decides: tells the policy, replaces one that breaks
commands        what the policy wants, checked (invariants) and carried out
state           what the engine knows at the moment
flights         batches on their way; overlap: when workers take their next one, so that they do not idle
succession      which policy decides, how another follows it, and when one that broke is tried again
refusals        events that are not taken in
observers       who watches; validation: the books checked against each other, in tests
"""
