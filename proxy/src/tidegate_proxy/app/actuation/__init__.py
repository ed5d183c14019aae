"""Live execution of a controller's layout changes.

actuator    executes the actions of a control loop: BEGIN HERE
warm_up     sends one request of each model before a worker counts as warm
"""
