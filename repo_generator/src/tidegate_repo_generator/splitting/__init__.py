"""Splitting an ONNX model into blocks, and joining consecutive blocks into partitions.

    from tidegate_repo_generator.splitting.split import split_model
    from tidegate_repo_generator.splitting.blocks import write_partition

    split = split_model("detect.onnx", "detect-blocks", blocks=10)
    write_partition(Path("detect-blocks"), 0, 4, Path("detect-front.onnx"))

How it works, in one file each:

    graph        what depends on what, and the nature of every value: constant, shape arithmetic, or data
    symbols      symbolic shapes, and the elements of shape vectors where they are known
    probing      one instrumented run per batch size: which values have the batch first
    source       the model in memory, its weights in files
    cutting      what crosses a cut, what is computed again behind it, which cuts are impossible
    extraction   the ONNX model of a span between two cuts
    run_times    how long each node takes, and where blocks of equal run time end
    blocks       a model with its cuts; partitions of consecutive blocks
    verification the blocks in a row against the model
    manifest     the document that says what was cut where
    batch_dim    a fixed batch of 1 made symbolic
    block_times  measuring blocks, for planners; `imports` takes the measurements of trtexec and onnxruntime

A block or partition takes tensors by name: inputs of the model and outputs of any block before it.
"""
