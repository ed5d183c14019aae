"""InSS's two-stage scheduler: networks that place and size models in milliseconds. They are trained in `training`.

catalog      features of each model of a problem, the share of a GPU that a rate needs, and the copies of models to
             place, the largest share first
placement    stage 1: the GPU, or group of GPUs, of each copy; GPUs without memory for it are masked
sharing      stage 2: the shares of each GPU, and the batch sizes of its models
scheduling   both stages over any number of GPUs, group by group
outcome      InSS's reward; rules of thumb for both stages, as baselines
networks     the networks, run by onnxruntime; `shipped` has the files that come with the plugin, and their training
             record
planner      `tidegate plan inss`
"""
