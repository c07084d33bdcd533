"""Small real models, trained on shipped or synthetic data, for demos and tests."""
