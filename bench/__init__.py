"""Measures the guard against the installed SDK's own transport; see `python -m bench --help`."""
