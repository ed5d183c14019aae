"""How the networks are made (`tidegate train-inss`); needs the extra `train`.

family         models made up, over the ranges in which measured ones lie
workloads      problems of such models, to learn from and, others, to judge by
sac_discrete   what learns stage 1
agents         both stages' learners with their memories; TD3 is Stable-Baselines3's
trainer        rounds of decisions, judged (`judging`) and learned from (`transitions`); checkpoints
export         the networks as ONNX files
record         the training record, and the learning curve as a page (`page`)
"""
