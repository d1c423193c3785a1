"""Generated model files and mutated real ones: what no example thought of.

``python -m fuzz`` (from ``tests/``; ``make fuzz``) runs many of both, the tests run a few. Every
case is made from the run's seed and its own number alone, so that it can be made again.
"""
