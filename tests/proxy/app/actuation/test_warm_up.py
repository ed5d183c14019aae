"""The request by which a model is warmed up."""

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate_proxy.app.actuation.warm_up import request_of_zeros


def test_it_has_one_row_of_zeros() -> None:
    config = text_format.Parse(
        """
        name: "m" max_batch_size: 8
        input { name: "X" data_type: TYPE_FP16 dims: [ 3, -1 ] }
        input { name: "SAID" data_type: TYPE_STRING dims: [ 2 ] }
        input { name: "MAYBE" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
        """,
        model_config_pb2.ModelConfig(),
    )
    request = request_of_zeros(config)
    assert [(each.name, each.datatype, list(each.shape)) for each in request.inputs] == [
        ("X", "FP16", [1, 3, 1]),
        ("SAID", "BYTES", [1, 2]),
    ]
    assert list(request.raw_input_contents) == [bytes(6), bytes(8)]


def test_a_model_without_batches_gets_no_row() -> None:
    config = text_format.Parse(
        'name: "m" input { name: "X" data_type: TYPE_INT64 dims: [ 2 ] }', model_config_pb2.ModelConfig()
    )
    assert [list(each.shape) for each in request_of_zeros(config).inputs] == [[2]]
