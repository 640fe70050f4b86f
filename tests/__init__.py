"""All tests, and what benchmarks/kill_gpu.py takes from them: a package, for an installed one of that name may be there too."""
