"""The demo: three adapters on one engine, told as a story that a person can follow.

In reading order: `styles` (what the adapters shall say), `model` and `train` (how they come to be),
`prepare` (all of that once, cached), `story` (what is shown), `__main__` (`make demo`).
"""
