"""`make test-torch`: launcher, rendezvous and Session on every torch that is supported."""
