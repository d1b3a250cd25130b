"""The papers' networks, one module per paper."""
