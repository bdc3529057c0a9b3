"""Jobs as they are read and changed."""
