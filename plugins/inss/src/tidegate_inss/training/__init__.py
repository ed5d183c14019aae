"""Training of the networks (`tidegate train-inss`); needs the extra `train`.

synthetic_models  random models whose parameters span those of measured ones
workloads         problems made of such models: one set to learn from, another to evaluate with
sac_discrete      the learner of stage 1
agents            the learners of both stages and their replay buffers; TD3 is Stable-Baselines3's
trainer           rounds of decisions, evaluated (`evaluation`) and learned from (`transitions`); checkpoints
export            the networks as ONNX files
training_record   how the networks were trained; page: the learning curve as HTML
"""
