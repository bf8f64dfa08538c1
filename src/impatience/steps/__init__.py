"""The parts of a writing step that come after the model's pass: landing, barred repeats and draws; and their number.

They run on NumPy arrays and on torch tensors alike, and import no torch for those of NumPy.
"""
