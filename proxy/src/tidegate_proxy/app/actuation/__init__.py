"""A controller, live: what it wants is brought about beside what serves.

actuator    carries the actions of a control loop out: BEGIN HERE
warming     one request of each model, before a worker counts as warm
"""
