"""JSON-RPC, one message per line, over the stdin and stdout of a child process."""
