"""A scripted model and a scripted model server, for tests of Outrider and of plugins."""
