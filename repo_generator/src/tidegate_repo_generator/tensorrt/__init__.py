"""TensorRT: what an engine has to be, and what builds one. An engine is made on the very kind of slice that runs it.

engine         what an engine takes and gives, the sizes that it is built for, its precision; as `engine.json`
given_shapes   the shapes of requests that were given, on the command line or by measured profiles
partition_shapes   the shapes that the partitions of split models meet
sizes          the smallest, usual and largest shape of every input: of rows, and of what the model leaves open
accelerator    the same for the ONNX Runtime backend, which builds engines itself while a model loads
build_engine   the script that stands beside models: builds engines with NVIDIA's `tensorrt`, and checks them
"""
