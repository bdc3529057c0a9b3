"""Machines that you already have: hosts that are reached by SSH, claimed for a node and given back clean."""
