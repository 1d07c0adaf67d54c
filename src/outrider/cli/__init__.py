"""What people type. Every command is a module of its own, imported only when it is used."""
