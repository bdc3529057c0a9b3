"""Telling people: each event at least once, under one id."""
