"""Room: find, show, act. The one read and act service behind command line, dashboard and metrics."""
