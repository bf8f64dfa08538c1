"""Training: from a recipe to a run folder with a model."""
