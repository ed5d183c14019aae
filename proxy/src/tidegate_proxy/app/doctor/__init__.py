"""Diagnosis of misconfiguration and possible improvements: `tidegate doctor`, `check --online`, warnings of `serve`.

Facts in, findings out: only `examination` and `triton_queries` use the network.

examination     queries the Tritons of a configuration and collects the facts: BEGIN HERE
triton_queries  what Tritons know beyond configurations: failed loads, execution times, why one is unreachable
facts           the collected facts; the latency of one row; a finding
diagnosis       derives findings from facts, by the rules in:
  models          models that fail to load, that no Triton has, that differ, that are batched in vain
  latency         SLOs that cannot be met, profiles of other hardware, models that slow each other down
  installation    plugins that fail to load, packages that would help, Tritons that exit by themselves
report          the table of models and the findings, as text and as JSON
"""
