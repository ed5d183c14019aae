"""Assembly of Tidegate, and supervision of the whole.

serve            creates the parts in the order of their dependencies: BEGIN HERE
proxy            the assembled proxy: it listens, applies a changed configuration, shuts down
tritons          the Tritons that take part, and their health checks
discovered_tritons  Tritons that join and leave as sources list them
triton_scaling   sets the replicas of Tritons in Kubernetes by their load
model_ownership  the models of this process, where several shards divide them
config_check     `tidegate check`
metrics_page     the metrics page, rendered for one reader at a time, and the documents served beside it
dashboard        the dashboard
tuning           replaces the policy while serving (`policy: auto`)
simulation_process  child process of the dashboard's what-if analysis and of tuning
doctor           `tidegate doctor`: finds misconfiguration and possible improvements
actuation        executes the layout changes of a controller
"""
