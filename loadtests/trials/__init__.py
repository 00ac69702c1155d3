"""Trials: promises, each tested on a bad day (`python -m loadtests.trials`).

A trial is a module, or a folder with `trial` in it if it has helpers. `trial` beside this file has
what all of them share.
"""
