"""Live execution of a controller's layout changes.

actuator    executes the actions of a control loop: BEGIN HERE
controller_process  the controller's child process: planning does not block the event loop
warm_up     sends one request of each model before a worker counts as warm
"""
