"""Models of a server that can be measured: those that Tidegate could schedule."""

from tritonclient.grpc import model_config_pb2


def why_not_measurable(config: model_config_pb2.ModelConfig) -> str:
    """Explain why Tidegate would bypass a model's requests despite any profile; "" if it can schedule them."""
    if config.max_batch_size < 1:
        return "max_batch_size 0: it has no rows to measure latency against"
    if config.HasField("ensemble_scheduling"):
        return "an ensemble: Triton schedules its steps"
    if config.HasField("sequence_batching"):
        return "sequence_batching: its requests depend on those before them"
    if config.model_transaction_policy.decoupled:
        return "decoupled: a request may have any number of responses"
    if config.batch_input or config.batch_output or any(tensor.is_shape_tensor for tensor in config.input):
        return "only Triton can form its batches"
    return ""
