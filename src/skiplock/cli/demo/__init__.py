"""`skiplock demo`: the four jobs every application needs, run by a fleet that loses a worker on the way."""
