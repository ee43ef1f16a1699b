"""The parts of the benchmarks, each a module whose functions are marked by `measures`."""
