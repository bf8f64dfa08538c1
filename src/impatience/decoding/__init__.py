"""Generates texts: our own decoding loop, packing of batches, retries."""
