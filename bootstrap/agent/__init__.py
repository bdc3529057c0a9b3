"""The agent: started as a unit of systemd or as a process of its own session, and stopped."""
