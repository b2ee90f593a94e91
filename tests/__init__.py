"""A regular package, so that `tests.support` is ours and not some installed library's."""
