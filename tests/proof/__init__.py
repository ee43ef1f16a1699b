"""The proof: the parts that docs/proof.md tells of, and what runs them all. `make prove` is `python -m tests.proof`."""
