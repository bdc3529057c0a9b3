"""The loop (observe -> plan -> journal -> act), its actor, leader election and clock."""
