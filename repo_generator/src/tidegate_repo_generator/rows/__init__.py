"""Whether the rows of a model are independent: may requests of several clients share one batch?

    from tidegate_repo_generator.rows.judgement import judge_rows

    verdict = judge_rows(read_onnx(Path("model.onnx")))

Two kinds of evidence, and both are needed, in one file each:

    examination  follows the batch dimension through the graph (`axes`), operator by operator (`rules`, and
                 `rearrangement`), along runs that show the shapes (`observation`): independent, mixing, or unknown
    trial        runs rows alone and in company, and compares what they answer (`comparison`)
    samples      the inputs of a trial: drawn, loud beside quiet, in the ranges that the graph allows, or given
    judgement    both together
"""
