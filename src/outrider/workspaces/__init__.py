"""Where tools act: implementations of the `Workspace` port."""
