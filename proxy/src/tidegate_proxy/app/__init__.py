"""Puts Tidegate together, and looks after the whole.

serve         the parts, in the order in which they need each other: BEGIN HERE
proxy         what they are together: it listens, takes up a changed configuration, ends
tritons       which Tritons take part, and who looks after them
claims        which models this process has where several shards share them
config_check  what `tidegate check` looks at
metrics_page  the metrics page, and the documents beside it
dashboard     the live page
doctor        what is wrong, or could be better
actuation     brings about the layouts that a controller wants
"""
