"""Configuration: settings, secrets and the choice of models. The only package that reads the environment."""
