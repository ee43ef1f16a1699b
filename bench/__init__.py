"""The benchmarks: ratios taken interleaved in one run, on servers of their own. `python -m bench --help`."""
