"""SERVE: bundles in, remaining useful life out, by HTTP and gRPC."""
