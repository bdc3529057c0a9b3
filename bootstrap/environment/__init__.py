"""The interpreter that trains: the machine's own, or one of an environment built from a lock."""
