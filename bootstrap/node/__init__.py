"""Facts that no single step owns: the user, the disk, the interpreter, the agent that runs."""
