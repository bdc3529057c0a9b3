"""Nodes: which there are, the end of one, who logs in to them, and who watches them."""
