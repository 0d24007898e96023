"""gRPC: servicers, messages, calls over ASGI."""
