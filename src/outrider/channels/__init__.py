"""Where people are. A channel stands on the app's calls, as the command line does: it adds a way in and a way out."""
