"""The cloud's own agent for logs, where the configuration asks for it."""
