"""Row independence of a model: may requests of several clients share one batch?

    from tidegate_repo_generator.rows.judgment import judge_rows

    verdict = judge_rows(read_onnx(Path("model.onnx")))

A model batches only if two kinds of evidence agree:

    examination  follows the batch dimension through the graph (`axes`), operator by operator (`rules`, and
                 `rearrangement`), along runs that show the shapes (`observation`): independent, mixing, or unknown
    batch_dim_probe  runs rows alone and in batches, and compares the outputs (`comparison`)
    samples      inputs of a trial: random, loud beside quiet, in the ranges that the graph allows, or given
    judgment    combines both
"""
