"""Trials: promises, each held to on a bad day (`python -m loadtests.trials`).

A trial is a module, or a folder with `trial` in it when it has helpers. `trial` beside this file
holds what all of them share.
"""
