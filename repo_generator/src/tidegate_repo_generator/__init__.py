"""The generator: from an ONNX file to a model in a Triton model repository.

    from tidegate_repo_generator.generate import generate_model

    generate_model("resnet.onnx", "models", slo_ms=70)

`generate` is the whole of it, in five steps: `onnx_file` reads what goes in and out, `rows` judges whether requests may
share a batch, `config` writes it down in Triton's words, `writing` puts the folder in place. `onnx_sessions` runs
models and turns errors of onnxruntime into ours, `source` keeps weights apart from the graph, and `dataflow` says what
depends on what. `model` has the nouns, `commands` the command line. `splitting` cuts models into blocks and partitions;
its commands are `split_command` and `profile_blocks_command`. `deploying` makes of a layout a folder that runs; its
command is `layout_command`. `tensorrt` has engines, and what TensorRT needs to know.
"""
