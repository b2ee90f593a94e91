"""The benchmark: skiplock beside a raw reference loop, on one server, in one run. See README.md."""
