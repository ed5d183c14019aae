"""TensorRT: description and building of engines. An engine is built on the same slice that runs it.

engine         inputs, outputs, sizes and precision of an engine; as `engine.json`
sizes          smallest, usual and largest shape of every input, by request shapes that are given or measured
build_engine   standalone script beside models: builds engines with NVIDIA's `tensorrt`, and checks them
"""
