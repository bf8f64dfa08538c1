"""Training: run a recipe and save the model in a run folder."""
