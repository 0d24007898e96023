"""From windows to answers: the door, the batcher and the runtime; no transports."""
