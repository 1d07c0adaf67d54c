"""Models: one wire format each, pure render and parse code beside one thin HTTP client."""
