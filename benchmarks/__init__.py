"""The benchmarks: ``python -m benchmarks`` runs them all and writes ``benchmarks.json``."""
