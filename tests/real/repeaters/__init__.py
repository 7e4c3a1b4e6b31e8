"""Frameworks that call a tool again by themselves or by their model's wish, each in an environment of its own."""
