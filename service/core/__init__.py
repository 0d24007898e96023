"""From checked windows to answers: the door, the batcher, the runtime. Transports stand outside."""
