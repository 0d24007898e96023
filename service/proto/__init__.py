"""The gRPC contract `rul.v1`, and the code that protoc generates from it (`make generate`)."""
