"""The command `python -m spark`: the jobs of `spark/submit.py` on this machine."""

from spark.submit import main

main()
