"""Assembles Tidegate and watches over the whole.

serve            creates the parts in the order of their dependencies: BEGIN HERE
proxy            the assembled proxy: it listens, applies a changed configuration, shuts down
tritons          which Tritons take part, and what watches them
model_ownership  the models of this process, where several shards divide them
config_check     `tidegate check`
metrics_page     the metrics page, and the documents served beside it
dashboard        the dashboard
doctor           `tidegate doctor`: finds misconfiguration and possible improvements
actuation        carries out the layouts that a controller wants
"""
