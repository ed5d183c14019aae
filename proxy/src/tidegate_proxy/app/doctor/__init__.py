"""Diagnosis of misconfiguration and possible improvements: `tidegate doctor`, `check --online`, warnings of `serve`.

Facts in, findings out: only `examination` and `triton_queries` use the network.

examination     queries the Tritons of a configuration and collects the facts: BEGIN HERE
triton_queries  what Tritons know beyond configurations: failed loads, execution times, why one is unreachable
facts           the collected facts; the latency of one row; a finding
diagnosis       derives findings from facts, by rules of the installation (plugins, packages, restarts) and in:
  models          models that fail to load, that no Triton has, that differ, that are batched in vain
  latency         SLOs that cannot be met, profiles of other hardware, models that slow each other down
report          the table of models and the findings, as text and as JSON
"""
