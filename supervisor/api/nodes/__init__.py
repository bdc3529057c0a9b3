"""A job's nodes: who reaches them, and who watches them."""
