"""The rules: pure values and `now` in, values out. No clock, no socket, no await in here."""
