"""What CI does: checks beside one run of the tests; the rules for tests that fail now and then."""
