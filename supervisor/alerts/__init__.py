"""Alerts: which message goes to which channel and when (pure: levels, routes, batches, texts, stories), and narrow
senders (slack, mail, signed). Each event is sent at least once, always with the same id."""
