"""TensorRT: description and building of engines. An engine is built on the same slice that runs it.

engine         inputs, outputs, sizes and precision of an engine; as `engine.json`
given_shapes   request shapes from the command line or from measured profiles
partition_shapes   shapes of the inputs of the partitions of split models
sizes          smallest, usual and largest shape of every input: rows and dynamic dimensions
accelerator    the same for the ONNX Runtime backend, which builds engines itself while a model loads
build_engine   standalone script beside models: builds engines with NVIDIA's `tensorrt`, and checks them
"""
