"""Model repository generator: turns an ONNX file into a model in a Triton model repository.

    from tidegate_repo_generator.generate import generate_model

    generate_model("resnet.onnx", "models", slo_ms=70)

`generate` is the entry point and has five steps: `onnx_file` reads inputs and outputs, `rows` judges whether requests
may share a batch, `config` writes the config.pbtxt, `atomic_folder` puts the folder in place. `onnx_sessions` runs
models and converts errors of onnxruntime, `source` keeps weights apart from the graph, and `dataflow` computes what
each node depends on. `model` defines the types, `commands` the command line. `splitting` cuts models into blocks and
partitions; its commands are `split_command` and `profile_blocks_command`. `deploying` generates a deployment from a
layout; its command is `layout_command`. `tensorrt` describes and builds TensorRT engines.
"""
