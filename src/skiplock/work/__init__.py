"""Room: claim, run, settle, beat."""
