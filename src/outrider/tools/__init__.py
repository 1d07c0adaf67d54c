"""What the native runtime's models can do: typed functions as tools, and the built-in ones."""
