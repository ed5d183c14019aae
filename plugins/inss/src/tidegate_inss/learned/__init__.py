"""InSS's two-stage scheduler as it is served: networks that decide in milliseconds. They are made in `training`.

catalog      the models of a problem: what describes each, and how much of a GPU a rate needs
loads        what is to be placed: copies of models, those that need most first
placing      stage 1: which GPU, or group of GPUs, each goes to; those without memory for it are masked
sharing      stage 2: how each GPU is divided, and in which batches its models run
scheduling   both stages over any number of GPUs, group by group
outcome      what decisions are worth: InSS's reward
rules        rules of thumb for both stages, to compare with
networks     the networks, run by onnxruntime; `shipped` has those that come with the plugin, and how they were made
planner      `tidegate plan inss`
"""
