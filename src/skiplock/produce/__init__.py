"""Room: getting jobs in."""
