"""One module a log format."""
