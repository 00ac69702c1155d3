"""Trials, which test promises of the broker and the SDK under faults, load and attacks (`python -m
loadtests.trials`).

A trial is a module here, or in a folder with its helpers: `trial` there, or one module for each of
several trials. `trial` beside this file has what all of them share.
"""
