"""Tools of the native runtime: typed functions as tools, and the built-in ones."""
