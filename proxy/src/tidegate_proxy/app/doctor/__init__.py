"""What is wrong, or could be better, before a Tidegate: `tidegate doctor`, and what `check --online` and `serve` say.

Facts in, findings out: only `examination` and those that it asks know a network.

examination   asks the Tritons of a configuration and puts together what is found: BEGIN HERE
asking        what Tritons know beyond configs: failed loads, times of executions and requests, why one is not reached
facts         what is known; what one row takes; one thing that deserves attention
diagnosis     from facts to findings: every concept below in turn
  models        models that do not load, that no Triton has, that differ, that are batched in vain
  times         SLOs that cannot be kept, profiles of other machines, models in each other's way
  installation  plugins that do not load, packages that would help, Tritons that end by themselves
report        the table of models and the findings, for people and for machines
"""
