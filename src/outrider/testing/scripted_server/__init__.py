"""A scripted model over HTTP, in three wire formats. `script.py` describes the script file."""
