"""Reproduction of the paper: paper.yaml declares every table and figure, and the lines that make it."""
