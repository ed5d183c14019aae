"""Training of the networks (`tidegate train-inss`); needs the extra `train`.

workloads         random models whose parameters span those of measured ones, and problems made of them: one set to
                  learn from, another to evaluate with
sac_discrete      the learner of stage 1
agents            the learners of both stages, their replay buffers and their networks as ONNX files; TD3 is
                  Stable-Baselines3's
trainer           rounds of decisions, evaluated and learned from (`transitions`); checkpoints
training_record   how the networks were trained, and how good they are; page: the learning curve as HTML
"""
