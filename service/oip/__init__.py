"""The Open Inference Protocol, version 2, by HTTP and gRPC."""
