"""Generates texts: the text generator, our own decoding loop, packing of batches, retries."""
