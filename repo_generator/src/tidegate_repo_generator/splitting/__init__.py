"""Splitting of ONNX models into blocks, and joining of consecutive blocks into partitions.

    from tidegate_repo_generator.splitting.split import split_model
    from tidegate_repo_generator.splitting.blocks import write_partition

    split = split_model("detect.onnx", "detect-blocks", blocks=10)
    write_partition(Path("detect-blocks"), 0, 4, Path("detect-front.onnx"))

Modules:

    graph        dependencies, and the nature of every value: constant, shape arithmetic, or data
    symbols      symbolic shapes, and the elements of shape vectors where they are known
    probing      one instrumented run per batch size: which values have the batch first
    source       the model in memory, its weights in files
    cutting      what crosses a cut, what is recomputed behind it, which cuts are impossible
    extraction   the ONNX model of a span between two cuts
    run_times    run time of each node, and the cuts between blocks of equal run time
    blocks       a model with its cuts; partitions of consecutive blocks
    verification the chained blocks compared with the model
    manifest     the document that describes the cuts
    batch_dim    a fixed batch of 1 made symbolic
    block_times  measuring blocks, for planners; `imports` reads the profiles of trtexec and onnxruntime
    inputs       sizes of inputs, as given by the user

A block or partition takes tensors by name: inputs of the model and outputs of any block before it.
"""
