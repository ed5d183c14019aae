"""Carries out the layouts of a controller, live, beside the Tritons that serve.

actuator    executes the actions of a control loop: BEGIN HERE
warm_up     sends one request of each model before a worker counts as warm
"""
