"""A scripted model over HTTP, for clients of three wire formats. The script's format: `script.py`."""
