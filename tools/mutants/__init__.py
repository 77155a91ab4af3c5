"""Faults made on purpose, each in one place of the product, and whether the tests see them."""
