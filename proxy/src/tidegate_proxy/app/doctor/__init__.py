"""What is wrong, or could be better, before a Tidegate: `tidegate doctor`, and what `check --online` and `serve` say.

Facts in, findings out: only `examination` and those that it asks know a network.

examination   asks the Tritons of a configuration and puts together what is found: BEGIN HERE
  reach         why a Triton cannot be asked: nobody there, another port, TLS
  asking        what Tritons know of models beyond their configs: what failed to load, how long executions took
  as_loaded     a Triton as it is once `load_without_delay` has been carried out
  timing        one request of a model, timed
facts         what is known; finding: one thing that deserves attention
diagnosis     from facts to findings: every concept below in turn
  deciding      whether the policy takes what the Tritons serve
  names         models that no Triton has
  loading       models that do not load
  slos          SLOs that cannot be kept, and those that nobody reads; one_row: what one row takes
  profiles      what was not measured, and what was measured in vain; hardware: what was measured on another machine
  batching      Triton's own batcher behind Tidegate; words that cannot be followed; batches of one
  rows          models that are merged though their rows are not independent, where their files can be read
  neighbours    models that run in turn where their Triton would run them side by side
  agreement     models that are not the same everywhere
  installation  plugins that do not load, packages that would help
page          the table of models and the findings, for people; document: the same for machines
"""
