"""The loop: observe -> plan -> journal -> act, and what it stands on."""
