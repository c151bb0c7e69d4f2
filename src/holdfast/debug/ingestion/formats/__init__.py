"""One module per log format."""
